// SPDX-License-Identifier: Apache-2.0
#include "broker/elastic/fair_share.h"

#include <algorithm>
#include <numeric>

namespace swiftcache::broker::elastic {
namespace {

// a * b / c rounded down, where a * b may exceed 64 bits. REQUIRES: the result fits.
int64_t MulDiv(int64_t a, int64_t b, int64_t c) { return static_cast<int64_t>(static_cast<__int128>(a) * b / c); }

}  // namespace

// Water-filling: claims are served in the order of wanted bytes per weight; what one does not want is left to the next.
std::vector<int64_t> FairShares(int64_t pool_bytes, const std::vector<ShareClaim>& claims) {
  std::vector<size_t> order(claims.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return static_cast<__int128>(claims[a].wanted_bytes) * claims[b].weight <
           static_cast<__int128>(claims[b].wanted_bytes) * claims[a].weight;
  });
  int64_t weights = 0, left = pool_bytes;
  for (const ShareClaim& claim : claims) weights += claim.weight;
  std::vector<int64_t> shares(claims.size(), 0);
  for (const size_t i : order) {
    shares[i] = std::min(claims[i].wanted_bytes, MulDiv(left, claims[i].weight, weights));
    left -= shares[i];
    weights -= claims[i].weight;
  }
  return shares;
}

}  // namespace swiftcache::broker::elastic
