// SPDX-License-Identifier: Apache-2.0
#include "engine/backend/cpu/packed_matrix.h"

#include <glog/logging.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "common/base/status_macros.h"
#include "engine/backend/cpu/dequantize.h"

namespace swiftcache::engine::backend::cpu {
namespace {

void Merge(const PackedMatrix::Rounding& from, PackedMatrix::Rounding& into) {
  into.rounds |= from.rounds;
  into.largest_relative_error = std::max(into.largest_relative_error, from.largest_relative_error);
}

float Error(float value, Bf16 rounded) { return std::abs(FromBf16(rounded) - value); }

// Rounds a row, and adds to `rounding` what that did. Every weight of a model comes by, so the first loop only asks,
// without a division, whether the row has a larger error than those before it: few do. Infinities and NaN have none,
// since their comparison fails.
void RoundRow(const float* row, int64_t cols, Bf16* out, PackedMatrix::Rounding& rounding) {
  float& largest = rounding.largest_relative_error;
  uint32_t larger = 0;
  for (int64_t k = 0; k < cols; ++k) {
    out[k] = ToBf16(row[k]);
    larger |= Error(row[k], out[k]) > largest * std::abs(row[k]) ? 1u : 0u;
  }
  if (larger == 0) return;
  rounding.rounds = true;
  for (int64_t k = 0; k < cols; ++k) {
    const float error = Error(row[k], out[k]) / std::abs(row[k]);
    if (error > largest) largest = error;
  }
}

// Sources of a stack, one after the other, that are packed alike.
struct Run {
  std::span<const WeightSource> sources;
  std::optional<QuantizedLayout> layout;  // nothing: rounded
  Int8Rows int8_rows = Int8Rows::kNone;
};

// One, without a layout, where panels would hold rows of two formats.
std::vector<Run> RunsOf(std::span<const WeightSource> stacked, absl::FunctionRef<Int8Rows(WeightFormat)> int8_rows) {
  std::vector<Run> runs;
  int64_t rows = 0;
  for (size_t i = 0; i < stacked.size(); rows += stacked[i].rows, ++i) {
    Int8Rows of_format = int8_rows(stacked[i].format);
    const std::optional<QuantizedLayout> layout = QuantizedLayoutOf(stacked[i].format, of_format != Int8Rows::kNone);
    if (!layout) of_format = Int8Rows::kNone;
    if (runs.empty() || runs.back().layout != layout || runs.back().int8_rows != of_format) {
      if (rows % kPanelCols != 0) return {{stacked, std::nullopt}};
      runs.push_back({stacked.subspan(i, 0), layout, of_format});
    }
    runs.back().sources = {runs.back().sources.data(), runs.back().sources.size() + 1};
  }
  return runs;
}

}  // namespace

absl::StatusOr<std::unique_ptr<PackedMatrix>> PackedMatrix::Pack(std::span<const WeightSource> stacked,
                                                                 Precision precision,
                                                                 absl::FunctionRef<Int8Rows(WeightFormat)> int8_rows,
                                                                 WeightArena& arena, ThreadPool& pool) {
  auto matrix = std::unique_ptr<PackedMatrix>(new PackedMatrix(stacked));
  matrix->precision_ = precision;
  const std::vector<Run> runs =
      precision == Precision::kBf16 ? RunsOf(stacked, int8_rows) : std::vector<Run>{{stacked, {}}};
  if (runs.size() == 1) {
    matrix->quantized_ = runs[0].layout;
    matrix->int8_rows_ = runs[0].int8_rows;
    matrix->parts_.push_back(matrix.get());
    RETURN_IF_ERROR(matrix->PackPart(stacked, arena, pool));
    return matrix;
  }
  int64_t first_row = 0;
  for (const Run& run : runs) {
    std::unique_ptr<PackedMatrix>& part =
        matrix->own_parts_.emplace_back(std::unique_ptr<PackedMatrix>(new PackedMatrix(run.sources)));
    part->quantized_ = run.layout;
    part->int8_rows_ = run.int8_rows;
    part->first_row_ = first_row;
    part->parts_.push_back(part.get());
    RETURN_IF_ERROR(part->PackPart(run.sources, arena, pool));
    first_row += part->rows();
    matrix->parts_.push_back(part.get());
    matrix->rounding_.insert(matrix->rounding_.end(), part->rounding_.begin(), part->rounding_.end());
  }
  return matrix;
}

PackedMatrix::PackedMatrix(std::span<const WeightSource> stacked) {
  CHECK(!stacked.empty());
  cols_ = stacked[0].cols;
  for (const WeightSource& source : stacked) {
    CHECK_EQ(source.cols, cols_);
    rows_ += source.rows;
  }
}

absl::Status PackedMatrix::PackPart(std::span<const WeightSource> stacked, WeightArena& arena, ThreadPool& pool) {
  rounding_.resize(stacked.size());
  ASSIGN_OR_RETURN(data_, arena.Allocate(bytes()));
  if (!quantized_) return PackRounded(stacked, pool);
  PackQuantized(stacked, pool);
  return absl::OkStatus();
}

int64_t PackedMatrix::bytes() const {
  if (own_parts_.empty()) return panels() * panel_bytes();
  int64_t sum = 0;
  for (const PackedMatrix* part : parts_) sum += part->bytes();
  return sum;
}

absl::Status PackedMatrix::PackRounded(std::span<const WeightSource> stacked, ThreadPool& pool) {
  const int64_t scratch_bytes = panel_bytes() + cols_ * int64_t{sizeof(float)};
  ASSIGN_OR_RETURN(HostMemory scratch, HostMemory::Allocate(pool.threads() * scratch_bytes));
  std::vector<std::vector<Rounding>> rounding(pool.threads(), std::vector<Rounding>(stacked.size()));
  pool.ParallelFor(panels(), [&](int64_t panel, int worker) {
    PackPanel(stacked, panel, scratch.data() + worker * scratch_bytes, rounding[worker].data());
  });
  for (const std::vector<Rounding>& of_worker : rounding) {
    for (size_t i = 0; i < stacked.size(); ++i) Merge(of_worker[i], rounding_[i]);
  }
  return absl::OkStatus();
}

void PackedMatrix::PackQuantized(std::span<const WeightSource> stacked, ThreadPool& pool) {
  pool.ParallelFor(panels(), [&](int64_t panel, int worker) {
    std::byte* const out = data_ + panel * panel_bytes();
    std::memset(out, 0, panel_bytes());
    int64_t first = 0;  // of the source, within the stack
    for (const WeightSource& source : stacked) {
      const int64_t begin = std::max(first, panel * kPanelCols);
      const int64_t end = std::min(first + source.rows, (panel + 1) * kPanelCols);
      for (int64_t r = begin; r < end; ++r) {
        PutQuantizedRow(*quantized_, source.format, source.Row(r - first), cols_, static_cast<int>(r % kPanelCols),
                        out);
      }
      first += source.rows;
    }
  });
}

// scratch: the panel's rows one after the other, as words of a step each, [kPanelCols][steps]; behind them f32 [cols].
// rounding: [stacked], added to.
void PackedMatrix::PackPanel(std::span<const WeightSource> stacked, int64_t panel, std::byte* scratch,
                             Rounding* rounding) {
  const int64_t row_bytes = steps() * kWordBytes;
  float* values = reinterpret_cast<float*>(scratch + panel_bytes());
  std::memset(scratch, 0, panel_bytes());
  int64_t first = 0;  // of the source, within the stack
  for (const WeightSource& source : stacked) {
    const int64_t begin = std::max(first, panel * kPanelCols);
    const int64_t end = std::min(first + source.rows, (panel + 1) * kPanelCols);
    for (int64_t r = begin; r < end; ++r) {
      std::byte* row = scratch + (r - panel * kPanelCols) * row_bytes;
      if (precision_ == Precision::kF32) {
        DequantizeRow(source, r - first, reinterpret_cast<float*>(row));
      } else {
        DequantizeRow(source, r - first, values);
        RoundRow(values, cols_, reinterpret_cast<Bf16*>(row), *rounding);
      }
    }
    first += source.rows;
    ++rounding;
  }
  std::byte* out = data_ + panel * panel_bytes();
  for (int64_t k = 0; k < steps(); ++k) {
    for (int64_t n = 0; n < kPanelCols; ++n, out += kWordBytes) {
      std::memcpy(out, scratch + n * row_bytes + k * kWordBytes, kWordBytes);
    }
  }
}

void PackedMatrix::ReadRow(int64_t row, float* out) const {
  for (const auto& part : own_parts_) {
    if (row < part->first_row() + part->rows()) return part->ReadRow(row - part->first_row(), out);
  }
  const std::byte* base = panel(row / kPanelCols);
  const int64_t col = row % kPanelCols;
  if (quantized_) return GetQuantizedRow(*quantized_, base, cols_, static_cast<int>(col), out);
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
