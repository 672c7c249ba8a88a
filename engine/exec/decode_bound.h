// SPDX-License-Identifier: Apache-2.0
// How fast a sequence can be decoded at best whose KV lies in leases: each of its tokens reads all of it, so that it takes
// the KV's bytes over the rate of the link.
//
//   DecodeBound bound({.max_tpot = absl::Milliseconds(50), .own_blocks = 100, ...}, &transport);
//   ASSIGN_OR_RETURN(int64_t tokens, bound.MaxTotalTokens(request, limit));     // or it would be too slow
#pragma once

#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "engine/exec/request.h"
#include "engine/transport/transport.h"

namespace swiftcache::engine::exec {

/// A bound from below: own memory is taken to hold as much of the sequence as it can, computing to cost nothing, and the
/// link to carry nothing else. So a request that is refused could not have been served in time by any luck; one that is
/// taken may still be slower than max_tpot. (Not so where shm streams: blocks that find no slot are read as own memory is.)
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
  /// To how many tokens prompt and output may come, of `total_tokens` that other limits allow: all of them, or, where
  /// the client has set no max_tokens, those within max_tpot. OUT_OF_RANGE: max_tpot would be exceeded. What own memory
  /// holds is always within it.
  absl::StatusOr<int64_t> MaxTotalTokens(const Request& request, int64_t total_tokens) const;

 private:
  std::optional<double> Rate() const;  // bytes a second
  absl::Duration Of(int64_t leased_blocks, double rate) const;

  const Options options_;
  const transport::Transport* const transport_;
};

}  // namespace swiftcache::engine::exec
