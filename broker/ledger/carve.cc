// SPDX-License-Identifier: Apache-2.0
#include "broker/ledger/carve.h"

#include <algorithm>

#include "common/base/units.h"

namespace swiftcache::broker::ledger {
namespace {

// The highest place in [low, high).
std::optional<Extent> CarveGap(int64_t low, int64_t high, const CarveSpec& spec) {
  low = CeilDiv(low, spec.step_blocks) * spec.step_blocks;
  high = high / spec.step_blocks * spec.step_blocks;
  const int64_t units = std::min(spec.max_units, (high - low) / spec.unit_blocks);
  if (units < 1) return std::nullopt;
  return Extent{.first_block = high - units * spec.unit_blocks, .num_blocks = units * spec.unit_blocks};
}

}  // namespace

std::optional<Extent> CarveFromTail(const Extent& region, std::vector<Extent> taken, const CarveSpec& spec) {
  std::sort(taken.begin(), taken.end(), [](const Extent& a, const Extent& b) { return a.end() > b.end(); });
  int64_t high = region.end();
  for (const Extent& extent : taken) {
    if (const auto found = CarveGap(std::max(region.first_block, extent.end()), high, spec)) return found;
    high = std::min(high, extent.first_block);
  }
  return CarveGap(region.first_block, high, spec);
}

}  // namespace swiftcache::broker::ledger
