// SPDX-License-Identifier: Apache-2.0
#include "engine/kv/reuse_meter.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <vector>

#include "absl/hash/hash.h"
#include "common/base/units.h"

namespace swiftcache::engine::kv {

int64_t Reuse::FoundAlone() const { return std::accumulate(found.begin(), found.end(), int64_t{0}); }

int64_t Reuse::CacheBlocks(int64_t own_blocks) const {
  int64_t spare = (looked_up - FoundAlone()) / kTolerance;
  for (int part = kParts; part > 0; --part) {
    spare -= found[part - 1];
    if (spare < 0) return std::min(own_blocks, CeilDiv((part + 1) * own_blocks, kParts));
  }
  return 0;
}

bool Reuse::Thrashes() const { return FoundAlone() * 5 < looked_up * 3; }

Reuse& Reuse::operator+=(const Reuse& other) {
  looked_up += other.looked_up;
  for (int i = 0; i < kParts; ++i) found[i] += other.found[i];
  return *this;
}

uint64_t ReuseMeter::Next(uint64_t key, std::span<const int32_t> tokens) {
  return absl::HashOf(key, absl::MakeConstSpan(tokens.data(), tokens.size()));
}

// A block is worth nothing without those that lead to it, so it is as deep as the deepest of them. They are used the
// last one first: a cache evicts leaves.
ReuseMeter::LookedUp ReuseMeter::LookUp(const std::string& salt, const TokenView& tokens, int64_t blocks,
                                        int64_t found) {
  LookedUp result;
  std::vector<uint64_t> keys = {absl::HashOf(salt)};
  std::optional<int64_t> depth = 0;
  for (int64_t i = 0; i < blocks; ++i) {
    keys.push_back(Next(keys.back(), tokens.Run(i * block_tokens_, block_tokens_)));
    const std::optional<int64_t> its = depth ? list_.Of(keys.back()) : std::nullopt;
    depth = its ? std::optional(std::max(*depth, *its)) : std::nullopt;
    if (!depth) continue;
    ++reuse_.found[(*depth - 1) * Reuse::kParts / own_blocks_];
    ++result.found_alone;
    if (i < found) continue;
    const auto why = static_cast<Gone>(list_.NoteOf(keys.back()));
    result.again_for_loans += why == Gone::kForLoan;
    result.again_for_losses += why == Gone::kWithALease;
  }
  reuse_.looked_up += blocks;
  for (int64_t i = blocks; i > 0; --i) list_.Use(keys[i]);
  result.key = keys[found];
  return result;
}

}  // namespace swiftcache::engine::kv
