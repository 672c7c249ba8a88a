// SPDX-License-Identifier: Apache-2.0
// Few large copies out of many small pieces: what is adjacent at both ends becomes one run, and equal pieces at equal
// distances, as a layer's slices of adjacent blocks are, become the rows of one grid.
//
//   const CopyLane::Copies copies = PlanCopies({{.to = slot, .from = lease + offset, .bytes = slice_bytes}, ...});
#pragma once

#include <span>

#include "engine/backend/cuda/copy_lane.h"
#include "engine/backend/cuda/driver.h"

namespace swiftcache::engine::transport::cuda_ipc {

/// In the order of the pieces, which is that of their addresses where blocks were taken in order; nothing is sorted.
/// What one plan writes does not overlap, so that the order of its copies is no matter. REQUIRES: bytes >= 0; all pieces
/// come from one reservation of addresses, and all go to one: of two that lie one behind the other the plan knows nothing.
backend::cuda::CopyLane::Copies PlanCopies(std::span<const backend::cuda::DeviceCopy> pieces);

}  // namespace swiftcache::engine::transport::cuda_ipc
