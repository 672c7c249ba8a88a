// SPDX-License-Identifier: Apache-2.0
// The minimum elastic unit (MEU) of a donor and a borrower: memory moves between them in multiples of it.
//
//   ASSIGN_OR_RETURN(ElasticUnit unit, ComputeUnit({.donor_block_bytes = 13'824, .borrower_block_bytes = 368'640,
//                                                   .page_bytes = 4096, .donor_arena_bytes = 64 << 20}));
//   unit.bytes == 1'105'920;  unit.donor_blocks == 80;  unit.borrower_blocks == 3;
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"

namespace swiftcache::broker::elastic {

/// A unit above this part of the donor's arena is too coarse to lend in.
inline constexpr int64_t kMaxUnitsPerArena = 16;
/// A padded unit wastes at most this much of its bytes.
inline constexpr int64_t kMaxWastePercent = 3;

/// Units: bytes.
struct Pair {
  int64_t donor_block_bytes = 0, borrower_block_bytes = 0;
  int64_t page_bytes = 1;  // extents begin and end on multiples of it; 1 where memory is not mapped
  int64_t donor_arena_bytes = 0;
};

/// Thread-safety: a value. Units: as named.
struct ElasticUnit {
  int64_t bytes = 0;            // a multiple of the donor's block and of the page
  int64_t donor_blocks = 0;     // MEU_i of eq. 9: bytes / donor_block_bytes
  int64_t borrower_blocks = 0;  // MEU_m of eq. 9: whole blocks of the borrower in it
  int64_t wasted_bytes = 0;     // behind the borrower's last whole block; 0: the exact unit
  bool padded() const { return wasted_bytes > 0; }
  friend bool operator==(const ElasticUnit&, const ElasticUnit&) = default;
};

/// Eq. 6-9 in bytes: the least common multiple of both blocks and the page (eq. 8; elements become bytes because the
/// dtypes may differ). Where that exceeds a sixteenth of the donor's arena: the smallest unit of whole donor blocks and
/// pages, no larger than that sixteenth, that wastes at most 3 % of its bytes.
/// FAILED_PRECONDITION: there is none; says the sizes and what would help. INVALID_ARGUMENT: a size below 1.
absl::StatusOr<ElasticUnit> ComputeUnit(const Pair& pair);

/// Extents of an arena whose block i begins at byte i * block_bytes begin on a page where their first block is a
/// multiple of this. REQUIRES: both > 0.
int64_t PageStepBlocks(int64_t block_bytes, int64_t page_bytes);

}  // namespace swiftcache::broker::elastic
