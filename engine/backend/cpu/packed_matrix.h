// SPDX-License-Identifier: Apache-2.0
// A weight matrix in panels of 32 outputs, so that a product streams it once, in order.
//
//   kBf16: [panels][pairs = ceil(cols / 2)][32][2]   a pair's inputs side by side, as the bf16 dot product wants them
//   kF32:  [panels][cols][32]
//   quantized(), where precision is kBf16 and the format is one of quantized_panel.h: as it says
//
// Outputs beyond rows() and an odd matrix's last input are zero. A stack of several formats is several matrices, its
// parts(), if each of them but the last is whole panels; else all of it is bf16.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "engine/backend/backend.h"
#include "engine/backend/cpu/int8_row.h"
#include "engine/backend/cpu/kernels.h"
#include "engine/backend/cpu/memory.h"
#include "engine/backend/cpu/quantized_panel.h"
#include "engine/backend/cpu/thread_pool.h"

namespace swiftcache::engine::backend::cpu {

/// Thread-safety: immutable after Pack. Ownership: borrows its bytes from the arena. Errors: RESOURCE_EXHAUSTED.
class PackedMatrix final : public Matrix {
 public:
  /// What packing did to the values of one source. kF32 rounds nothing, kBf16 whatever has more than 8 significant bits.
  struct Rounding {
    bool rounds = false;
    float largest_relative_error = 0;
  };

  /// `int8_rows`: of a quantised format; but for kNone its weights are packed for integer products.
  static absl::StatusOr<std::unique_ptr<PackedMatrix>> Pack(std::span<const WeightSource> stacked, Precision precision,
                                                            absl::FunctionRef<Int8Rows(WeightFormat)> int8_rows,
                                                            WeightArena& arena, ThreadPool& pool);
  int64_t rows() const override { return rows_; }
  int64_t cols() const override { return cols_; }
  int64_t bytes() const override;

  /// What products are made of: in the order of their rows; the matrix itself, where it is of one format.
  std::span<const PackedMatrix* const> parts() const { return parts_; }
  /// Of a part, within the stack.
  int64_t first_row() const { return first_row_; }
  /// out: f32 [cols()].
  void ReadRow(int64_t row, float* out) const;
  /// Of each source, in the order of the stack.
  const std::vector<Rounding>& rounding() const { return rounding_; }

  // Of a part.

  Precision precision() const { return precision_; }
  const std::optional<QuantizedLayout>& quantized() const { return quantized_; }
  Int8Rows int8_rows() const { return int8_rows_; }
  int64_t blocks() const { return cols_ / quantized_->inputs; }  // of a quantised panel
  int64_t panels() const { return PadToPanel(rows_) / kPanelCols; }
  /// Steps of a product: inputs (kF32) or pairs of inputs (kBf16). Of a panel that is not quantised.
  int64_t steps() const { return precision_ == Precision::kF32 ? cols_ : (cols_ + 1) / 2; }
  int64_t panel_bytes() const {
    return quantized_ ? quantized_->panel_bytes(cols_) : steps() * kPanelCols * kWordBytes;
  }
  const std::byte* panel(int64_t p) const { return data_ + p * panel_bytes(); }

 private:
  static constexpr int64_t kWordBytes = 4;  // of one output and one step: an f32, or a pair of bf16

  explicit PackedMatrix(std::span<const WeightSource> stacked);
  absl::Status PackPart(std::span<const WeightSource> stacked, WeightArena& arena, ThreadPool& pool);
  absl::Status PackRounded(std::span<const WeightSource> stacked, ThreadPool& pool);
  void PackQuantized(std::span<const WeightSource> stacked, ThreadPool& pool);
  void PackPanel(std::span<const WeightSource> stacked, int64_t panel, std::byte* scratch, Rounding* rounding);

  Precision precision_ = Precision::kBf16;
  std::optional<QuantizedLayout> quantized_;
  Int8Rows int8_rows_ = Int8Rows::kNone;  // kNone where it is not quantised
  int64_t rows_ = 0;
  int64_t cols_ = 0;
  int64_t first_row_ = 0;
  std::byte* data_ = nullptr;
  std::vector<std::unique_ptr<PackedMatrix>> own_parts_;  // of several formats
  std::vector<const PackedMatrix*> parts_;
  std::vector<Rounding> rounding_;
};

}  // namespace swiftcache::engine::backend::cpu
