// SPDX-License-Identifier: Apache-2.0
#include "engine/backend/cpu/packed_matrix.h"

#include <glog/logging.h>

#include <algorithm>
#include <vector>

#include "common/base/status_macros.h"

namespace swiftcache::engine::backend::cpu {

absl::StatusOr<std::unique_ptr<PackedMatrix>> PackedMatrix::Pack(std::span<const RowSource> stacked,
                                                                 Precision precision, WeightArena& arena,
                                                                 ThreadPool& pool) {
  CHECK(!stacked.empty());
  auto matrix = std::unique_ptr<PackedMatrix>(new PackedMatrix());
  matrix->precision_ = precision;
  matrix->cols_ = stacked[0].cols;
  for (const RowSource& source : stacked) {
    CHECK_EQ(source.cols, matrix->cols_);
    matrix->rows_ += source.rows;
  }
  ASSIGN_OR_RETURN(matrix->data_, arena.Allocate(matrix->bytes()));
  const int64_t panel_floats = kPanelCols * matrix->cols_;
  ASSIGN_OR_RETURN(HostMemory rows, HostMemory::Allocate(pool.threads() * panel_floats * int64_t{sizeof(float)}));
  pool.ParallelFor(matrix->panels(), [&](int64_t panel, int worker) {
    matrix->PackPanel(stacked, panel, rows.as<float>() + worker * panel_floats);
  });
  return matrix;
}

void PackedMatrix::PackPanel(std::span<const RowSource> stacked, int64_t panel, float* rows) {
  std::fill_n(rows, kPanelCols * cols_, 0.0f);
  int64_t first = 0;  // of the source, within the stack
  for (const RowSource& source : stacked) {
    const int64_t begin = std::max(first, panel * kPanelCols);
    const int64_t end = std::min(first + source.rows, (panel + 1) * kPanelCols);
    for (int64_t r = begin; r < end; ++r) source.read_row(r - first, rows + (r - panel * kPanelCols) * cols_);
    first += source.rows;
  }
  std::byte* out = data_ + panel * panel_bytes();
  if (precision_ == Precision::kF32) {
    PackPanelF32(rows, reinterpret_cast<float*>(out));
  } else {
    PackPanelBf16(rows, reinterpret_cast<uint32_t*>(out));
  }
}

void PackedMatrix::PackPanelF32(const float* rows, float* out) const {
  for (int64_t k = 0; k < cols_; ++k) {
    for (int64_t n = 0; n < kPanelCols; ++n) *out++ = rows[n * cols_ + k];
  }
}

void PackedMatrix::PackPanelBf16(const float* rows, uint32_t* out) const {
  for (int64_t k = 0; k < cols_; k += 2) {
    for (int64_t n = 0; n < kPanelCols; ++n) {
      const float* pair = rows + n * cols_ + k;
      const uint32_t high = k + 1 < cols_ ? ToBf16(pair[1]) : Bf16{0};
      *out++ = high << 16 | ToBf16(pair[0]);
    }
  }
}

void PackedMatrix::ReadRow(int64_t row, float* out) const {
  const std::byte* base = panel(row / kPanelCols);
  const int64_t col = row % kPanelCols;
  if (precision_ == Precision::kF32) {
    const float* in = reinterpret_cast<const float*>(base) + col;
    for (int64_t k = 0; k < cols_; ++k) out[k] = in[k * kPanelCols];
    return;
  }
  const uint32_t* in = reinterpret_cast<const uint32_t*>(base) + col;
  for (int64_t k = 0; k < cols_; ++k) {
    const uint32_t pair = in[k / 2 * kPanelCols];
    out[k] = FromBf16(static_cast<Bf16>(k % 2 == 0 ? pair : pair >> 16));
  }
}

}  // namespace swiftcache::engine::backend::cpu
