// SPDX-License-Identifier: Apache-2.0
#include "broker/elastic/elastic_unit.h"

#include <algorithm>
#include <numeric>
#include <optional>

#include "absl/strings/str_cat.h"
#include "common/base/units.h"

namespace swiftcache::broker::elastic {
namespace {

std::optional<int64_t> CheckedLcm(int64_t a, int64_t b) { return CheckedMul(a / std::gcd(a, b), b); }

ElasticUnit UnitOf(int64_t bytes, const Pair& pair) {
  return {.bytes = bytes,
          .donor_blocks = bytes / pair.donor_block_bytes,
          .borrower_blocks = bytes / pair.borrower_block_bytes,
          .wasted_bytes = bytes % pair.borrower_block_bytes};
}

bool WastesLittle(const ElasticUnit& unit) {
  return unit.borrower_blocks > 0 && unit.wasted_bytes <= unit.bytes / 100 * kMaxWastePercent;
}

// The smallest multiple of `step` up to `limit` that wastes little. The waste is below one step and below one borrower
// block, so the search ends after 100 / kMaxWastePercent steps of the larger of the two.
std::optional<ElasticUnit> SmallestPadded(const Pair& pair, int64_t step, int64_t limit) {
  const int64_t stride = std::max(step, pair.borrower_block_bytes);
  for (int64_t reach = stride; CeilDiv(reach, step) <= limit / step;) {
    const ElasticUnit unit = UnitOf(CeilDiv(reach, step) * step, pair);
    if (WastesLittle(unit)) return unit;
    const std::optional<int64_t> next = CheckedAdd(reach, stride);
    if (!next.has_value()) break;
    reach = *next;
  }
  return std::nullopt;
}

}  // namespace

int64_t PageStepBlocks(int64_t block_bytes, int64_t page_bytes) {
  return page_bytes / std::gcd(block_bytes, page_bytes);
}

absl::StatusOr<ElasticUnit> ComputeUnit(const Pair& pair) {
  if (std::min({pair.donor_block_bytes, pair.borrower_block_bytes, pair.page_bytes, pair.donor_arena_bytes}) < 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "elastic unit: donor block ", pair.donor_block_bytes, ", borrower block ", pair.borrower_block_bytes, ", page ",
        pair.page_bytes, ", arena ", pair.donor_arena_bytes, " bytes; wanted all of them above 0"));
  }
  const int64_t limit = pair.donor_arena_bytes / kMaxUnitsPerArena;
  const std::optional<int64_t> step = CheckedLcm(pair.donor_block_bytes, pair.page_bytes);
  const std::optional<int64_t> exact =
      step.has_value() ? CheckedLcm(*step, pair.borrower_block_bytes) : std::optional<int64_t>();
  if (exact.has_value() && *exact <= limit) return UnitOf(*exact, pair);
  if (step.has_value()) {
    if (const std::optional<ElasticUnit> padded = SmallestPadded(pair, *step, limit)) return *padded;
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "blocks of ", pair.donor_block_bytes, " (donor) and ", pair.borrower_block_bytes,
      " bytes (borrower) on pages of ", pair.page_bytes, " have an elastic unit of ",
      exact.has_value() ? absl::StrCat(*exact, " bytes") : std::string("over 2^63 bytes"), ", wanted at most ", limit,
      " (1/", kMaxUnitsPerArena, " of the donor's arena), and no unit that wastes at most ", kMaxWastePercent,
      " % is that small either; give the donor a larger --kv_cache_bytes or choose another --block_tokens"));
}

}  // namespace swiftcache::broker::elastic
