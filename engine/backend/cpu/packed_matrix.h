// SPDX-License-Identifier: Apache-2.0
// A weight matrix in panels of 32 outputs, so that a product streams it once, in order.
//
//   kBf16: [panels][pairs = ceil(cols / 2)][32][2]   both inputs of a pair side by side, as the bf16 dot product wants
//   them kF32:  [panels][cols][32]
//
// Outputs beyond rows() and an odd matrix's last input are zero.
#pragma once

#include <cstdint>
#include <span>

#include "absl/status/statusor.h"
#include "engine/backend/backend.h"
#include "engine/backend/cpu/kernels.h"
#include "engine/backend/cpu/memory.h"
#include "engine/backend/cpu/thread_pool.h"

namespace swiftcache::engine::backend::cpu {

/// Thread-safety: immutable after Pack. Ownership: borrows its bytes from the arena. Errors: RESOURCE_EXHAUSTED.
class PackedMatrix final : public Matrix {
 public:
  static absl::StatusOr<std::unique_ptr<PackedMatrix>> Pack(std::span<const RowSource> stacked, Precision precision,
                                                            WeightArena& arena, ThreadPool& pool);
  int64_t rows() const override { return rows_; }
  int64_t cols() const override { return cols_; }
  int64_t bytes() const override { return panels() * panel_bytes(); }

  Precision precision() const { return precision_; }
  int64_t panels() const { return PadToPanel(rows_) / kPanelCols; }
  /// Steps of a product: inputs (kF32) or pairs of inputs (kBf16).
  int64_t steps() const { return precision_ == Precision::kF32 ? cols_ : (cols_ + 1) / 2; }
  int64_t panel_bytes() const { return steps() * kPanelCols * 4; }
  const std::byte* panel(int64_t p) const { return data_ + p * panel_bytes(); }
  /// out: f32 [cols()].
  void ReadRow(int64_t row, float* out) const;

 private:
  PackedMatrix() = default;
  void PackPanel(std::span<const RowSource> stacked, int64_t panel, float* rows);
  void PackPanelF32(const float* rows, float* out) const;
  void PackPanelBf16(const float* rows, uint32_t* out) const;

  Precision precision_ = Precision::kBf16;
  int64_t rows_ = 0;
  int64_t cols_ = 0;
  std::byte* data_ = nullptr;
};

}  // namespace swiftcache::engine::backend::cpu
