// SPDX-License-Identifier: Apache-2.0
#include "engine/transport/cuda_ipc/copy_plan.h"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace swiftcache::engine::transport::cuda_ipc {
namespace {

using backend::cuda::CopyLane;
using backend::cuda::DeviceCopy;

// A pitch has 31 bits on every device (CU_DEVICE_ATTRIBUTE_MAX_PITCH).
constexpr int64_t kMostStride = (int64_t{1} << 31) - 1;
// A grid is one call of the driver more; runs are handed over together.
constexpr int64_t kLeastRows = 3;

std::vector<DeviceCopy> Join(std::span<const DeviceCopy> pieces) {
  std::vector<DeviceCopy> runs;
  runs.reserve(pieces.size());
  for (const DeviceCopy& piece : pieces) {
    if (piece.bytes == 0) continue;
    if (!runs.empty() && runs.back().to + runs.back().bytes == piece.to &&
        runs.back().from + runs.back().bytes == piece.from) {
      runs.back().bytes += piece.bytes;
    } else {
      runs.push_back(piece);
    }
  }
  return runs;
}

bool IsStride(int64_t stride, int64_t bytes) { return stride >= bytes && stride <= kMostStride; }

// How many of the runs are rows of one grid.
int64_t RowsOf(std::span<const DeviceCopy> runs) {
  if (runs.size() < 2) return static_cast<int64_t>(runs.size());
  const auto to_stride = static_cast<int64_t>(runs[1].to - runs[0].to);
  const auto from_stride = static_cast<int64_t>(runs[1].from - runs[0].from);
  if (!IsStride(to_stride, runs[0].bytes) || !IsStride(from_stride, runs[0].bytes)) return 1;
  size_t rows = 1;
  while (rows < runs.size() && runs[rows].bytes == runs[0].bytes && runs[rows].to == runs[rows - 1].to + to_stride &&
         runs[rows].from == runs[rows - 1].from + from_stride) {
    ++rows;
  }
  return static_cast<int64_t>(rows);
}

}  // namespace

CopyLane::Copies PlanCopies(std::span<const DeviceCopy> pieces) {
  CopyLane::Copies copies;
  const std::vector<DeviceCopy> joined = Join(pieces);
  for (std::span<const DeviceCopy> left = joined; !left.empty();) {
    const int64_t rows = RowsOf(left);
    if (rows < kLeastRows) {
      copies.runs.push_back(left.front());
      left = left.subspan(1);
      continue;
    }
    copies.grids.push_back({.to = left[0].to,
                            .from = left[0].from,
                            .to_stride = static_cast<int64_t>(left[1].to - left[0].to),
                            .from_stride = static_cast<int64_t>(left[1].from - left[0].from),
                            .bytes = left[0].bytes,
                            .rows = rows});
    left = left.subspan(rows);
  }
  return copies;
}

}  // namespace swiftcache::engine::transport::cuda_ipc
