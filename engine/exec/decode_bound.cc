// SPDX-License-Identifier: Apache-2.0
#include "engine/exec/decode_bound.h"

#include <glog/logging.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/units.h"

namespace swiftcache::engine::exec {

std::optional<double> DecodeBound::Rate() const {
  return transport_ == nullptr ? std::nullopt : transport_->read_rate(options_.in_place);
}

absl::Duration DecodeBound::Of(int64_t leased_blocks, double rate) const {
  return absl::Seconds(static_cast<double>(leased_blocks * options_.block_bytes) / rate);
}

// The KV of the last token is not needed.
std::optional<absl::Duration> DecodeBound::OfLongest(int64_t own_blocks, int64_t leased_blocks) const {
  if (leased_blocks == 0) return std::nullopt;
  const std::optional<double> rate = Rate();
  if (!rate) return std::nullopt;
  const int64_t blocks = CeilDiv(options_.max_model_len_tokens - 1, options_.block_tokens);
  return Of(std::clamp<int64_t>(blocks - own_blocks, 0, leased_blocks), *rate);
}

absl::Status DecodeBound::Check(const Request& request) const {
  const auto tokens = static_cast<int64_t>(request.prompt.size());
  const int64_t beyond = CeilDiv(tokens, options_.block_tokens) - options_.own_blocks;
  if (options_.max_tpot <= absl::ZeroDuration() || beyond <= 0 || request.max_tokens == 1) return absl::OkStatus();
  const std::optional<double> rate = Rate();
  if (!rate) {
    LOG_FIRST_N(WARNING, 1)
        << "--max_tpot refuses nothing while no rate is known at which leases are read: --link_gbps "
           "says it, or loads show it; shm in place has none";
    return absl::OkStatus();
  }
  const absl::Duration bound = Of(beyond, *rate);
  if (bound <= options_.max_tpot) return absl::OkStatus();
  return absl::OutOfRangeError(absl::StrCat(
      "the prompt has ", tokens, " tokens, of which this engine's own memory holds ",
      options_.own_blocks * options_.block_tokens, ": with the rest in leases each output token takes at least ",
      absl::FormatDuration(absl::Ceil(bound, absl::Microseconds(1))), " over ", transport_->kind(), ", at ",
      static_cast<int64_t>(*rate / 1e6), " MB/s; --max_tpot is ", absl::FormatDuration(options_.max_tpot),
      ": shorten the prompt, or raise --kv_cache_bytes or --max_tpot"));
}

}  // namespace swiftcache::engine::exec
