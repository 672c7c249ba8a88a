// SPDX-License-Identifier: Apache-2.0
// How fast a sequence can be decoded at best whose KV lies in leases: each of its tokens reads all of it, so that it takes
// the KV's bytes over the rate of the link.
//
//   DecodeBound bound({.max_tpot = absl::Milliseconds(50), .own_blocks = 100, ...}, &transport);
//   RETURN_IF_ERROR(bound.Check(request));     // or it would be too slow
#pragma once

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "engine/exec/request.h"
#include "engine/transport/transport.h"

namespace swiftcache::engine::exec {

/// A bound from below: own memory is taken to hold as much of the sequence as it can, computing to cost nothing, and the
/// link to carry nothing else. So a request that is refused could not have been served in time by any luck, if the rate
/// is right; one that is taken may still be slower than max_tpot. A rate that was measured is that of the fastest load so
/// far, which may be less than the link's; and where shm streams, blocks that find no slot are read as own memory is.
/// Thread-safety: safe. Ownership: borrows the transport. Errors: as named.
class DecodeBound {
 public:
  struct Options {
    absl::Duration max_tpot;  // zero: nothing is refused
    int64_t own_blocks = 0, block_tokens = 0, block_bytes = 0;
    int64_t max_model_len_tokens = 0;
    bool in_place = true;  // leases are read where they lie
  };
  /// `transport`: null in an engine that shares nothing; then there is no bound.
  DecodeBound(const Options& options, const transport::Transport* transport)
      : options_(options), transport_(transport) {}

  /// Of the longest sequence that so many own and leased blocks hold. None: none is leased, or the link's rate is not
  /// known.
  std::optional<absl::Duration> OfLongest(int64_t own_blocks, int64_t leased_blocks) const;
  /// OUT_OF_RANGE: each token after the first would take longer than max_tpot, since each reads the prompt's KV at least.
  absl::Status Check(const Request& request) const;

 private:
  std::optional<double> Rate() const;  // bytes a second
  absl::Duration Of(int64_t leased_blocks, double rate) const;

  const Options options_;
  const transport::Transport* const transport_;
};

}  // namespace swiftcache::engine::exec
