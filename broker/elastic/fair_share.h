// SPDX-License-Identifier: Apache-2.0
// How memory is divided among borrowers that want more than there is: weighted max-min fairness.
//
//   FairShares(100, {{.weight = 1, .wanted_bytes = 10}, {.weight = 1, .wanted_bytes = 90}, {.weight = 2,
//              .wanted_bytes = 500}}) == {10, 30, 60};
#pragma once

#include <cstdint>
#include <vector>

namespace swiftcache::broker::elastic {

/// Every borrower's weight before its waiting tokens are added: no borrower has weight 0, and small differences between
/// short queues move no memory.
inline constexpr int64_t kBaseWeightTokens = 1024;

/// One borrower. Units: tokens and bytes.
struct ShareClaim {
  int64_t weight = kBaseWeightTokens;  // > 0; kBaseWeightTokens + tokens of its waiting requests
  int64_t wanted_bytes = 0;            // in all: what it holds already and what it asks for
};

/// The share of each claim, in the same order. No borrower gets more than it wants. One that wants more than its part
/// by weight gets at least that part; what others leave is divided by weight, too. A single borrower may thus take all,
/// but only while no other wants any. Shares add up to min(pool, sum of wanted bytes), less at most one byte per claim.
/// REQUIRES: pool_bytes >= 0.
std::vector<int64_t> FairShares(int64_t pool_bytes, const std::vector<ShareClaim>& claims);

}  // namespace swiftcache::broker::elastic
