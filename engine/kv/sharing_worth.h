// SPDX-License-Identifier: Apache-2.0
// What lending and borrowing were worth to an engine, in tokens: against a cache of its own memory, all of it and
// nothing more, under the same prompts (kv::ReuseMeter).
//
//   const SharingWorth worth = cache.worth();
//   worth.net_tokens() > 0;   // sharing pays for this engine
#pragma once

#include <cstdint>

namespace swiftcache::engine::kv {

/// Since the start, in whole blocks. How each is counted, when a sequence looks for its prompt (KvCache::Attach):
///
/// - saved: found, and deeper in the order of last use than own memory reaches, while something was borrowed, and used
///   by nobody else at the time. Counted the first time that a sequence runs. Too few: what a sequence finds behind a
///   hole, or after the last lease has ended. Too many: prompts that are cancelled before their first token.
/// - again for loans: own memory alone would have had it, and it was evicted while own memory was lent or to be lent.
///   Too few: what comes after it was never computed, since a request went away, and what fills no block.
/// - again for losses: own memory alone would have had it, and it lay in a lease that ended before it was moved away.
///
/// What own memory alone would have had is by the order of last use: a cache that pins what runs differs from that by a
/// little. Thread-safety: a value. Units: tokens.
struct SharingWorth {
  int64_t saved_tokens = 0, again_for_loans_tokens = 0, again_for_losses_tokens = 0;
  SharingWorth& operator+=(const SharingWorth& other) {
    saved_tokens += other.saved_tokens;
    again_for_loans_tokens += other.again_for_loans_tokens;
    again_for_losses_tokens += other.again_for_losses_tokens;
    return *this;
  }
  int64_t net_tokens() const { return saved_tokens - again_for_loans_tokens - again_for_losses_tokens; }
  friend bool operator==(const SharingWorth&, const SharingWorth&) = default;
};

}  // namespace swiftcache::engine::kv
