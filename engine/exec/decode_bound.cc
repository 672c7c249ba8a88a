// SPDX-License-Identifier: Apache-2.0
#include "engine/exec/decode_bound.h"

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

absl::StatusOr<int64_t> DecodeBound::MaxTotalTokens(const Request& request, int64_t total_tokens) const {
  if (options_.max_tpot <= absl::ZeroDuration()) return total_tokens;
  const std::optional<double> rate = Rate();
  if (!rate) return total_tokens;
  const double blocks = absl::FDivDuration(options_.max_tpot, Of(1, *rate));
  const auto leased_blocks = static_cast<int64_t>(std::min(blocks, static_cast<double>(total_tokens)));
  const int64_t most = (options_.own_blocks + leased_blocks) * options_.block_tokens + 1;
  const int64_t tokens = request.max_tokens
                             ? total_tokens
                             : std::clamp(most, static_cast<int64_t>(request.prompt.size()) + 1, total_tokens);
  if (tokens <= most) return tokens;
  const int64_t beyond = CeilDiv(tokens - 1, options_.block_tokens) - options_.own_blocks;
  return absl::OutOfRangeError(absl::StrCat(
      "prompt and output may come to ", tokens, " tokens, of which this engine's own memory holds ",
      options_.own_blocks * options_.block_tokens, ": with the rest in leases a token takes at least ",
      absl::FormatDuration(absl::Ceil(Of(beyond, *rate), absl::Microseconds(1))), " over ", transport_->kind(), ", at ",
      static_cast<int64_t>(*rate / 1e6), " MB/s; --max_tpot is ", absl::FormatDuration(options_.max_tpot),
      ": shorten the prompt, lower max_tokens, or raise --kv_cache_bytes or --max_tpot"));
}

}  // namespace swiftcache::engine::exec
