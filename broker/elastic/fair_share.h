// SPDX-License-Identifier: Apache-2.0
// How memory is divided among borrowers who want more than there is: weighted max-min fairness.
//
//   FairShares(100, {{.weight = 1, .wanted_bytes = 10}, {.weight = 1, .wanted_bytes = 90}, {.weight = 2,
//              .wanted_bytes = 500}}) == {10, 30, 60};
#pragma once

#include <cstdint>
#include <vector>

namespace swiftcache::broker::elastic {

/// What every borrower weighs before its waiting tokens are added: nobody weighs nothing, and small differences of
/// small queues move no memory.
inline constexpr int64_t kBaseWeightTokens = 1024;

/// One borrower. Units: tokens and bytes.
struct ShareClaim {
  int64_t weight = kBaseWeightTokens;  // > 0; kBaseWeightTokens + tokens of its waiting requests
  int64_t wanted_bytes = 0;            // in all: what it holds and what it wants more
};

/// The share of each claim, in order: nobody gets more than it wants; who wants more than its part by weight gets at
/// least that part; what some do not want goes to the others, by weight. So who comes first takes all only while it is
/// alone. Shares add up to min(pool, all wants), less at most one byte a claim. REQUIRES: pool_bytes >= 0.
std::vector<int64_t> FairShares(int64_t pool_bytes, const std::vector<ShareClaim>& claims);

}  // namespace swiftcache::broker::elastic
