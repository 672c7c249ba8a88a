// SPDX-License-Identifier: Apache-2.0
#include "engine/backend/cpu/linear.h"

#include <glog/logging.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/base/status_macros.h"
#include "common/base/units.h"
#include "engine/backend/cpu/host_buffer.h"
#include "engine/backend/cpu/int8_row.h"

namespace swiftcache::engine::backend::cpu {
namespace {

constexpr int64_t kRowAlignment = 64;  // in bytes, so that no row of a tile of AMX lies in two cache lines

// Copies a row and zeroes the padding.
void CopyRow(const float* x, int64_t n, float* out) {
  std::memcpy(out, x, n * sizeof(float));
  std::fill(out + n, out + PadToPanel(n), 0.0f);
}

bool IsInt8(const PackedMatrix& weight) { return weight.int8_rows() != Int8Rows::kNone; }

// Of a prepared row, one after the other.
int64_t NumInt8Rows(const PackedMatrix& weight) { return weight.int8_rows() == Int8Rows::kTwice ? 2 : 1; }

}  // namespace

Linear::Linear(const Kernels& kernels, bool bf16_rows, ThreadPool& pool)
    : kernels_(kernels), bf16_rows_(bf16_rows), pool_(pool), prepared_(pool.threads()) {}

int64_t Linear::PreparedRowBytes(const PackedMatrix& weight) const {
  if (!IsInt8(weight)) return PreparedRowBytes(weight.cols());
  return NumInt8Rows(weight) * (weight.cols() / kInt8Inputs) * int64_t{sizeof(Int8Group)};
}

int64_t Linear::PreparedRowBytes(int64_t cols) const {
  const int64_t bytes = PadToPanel(cols) * InputBytes() + PadToPanel(cols) / kBlockInputs * int64_t{sizeof(float)};
  return CeilDiv(bytes, kRowAlignment) * kRowAlignment;
}

absl::Status Linear::Reserve(int64_t rows, int64_t cols) {
  if (rows <= max_rows_ && cols <= max_cols_) return absl::OkStatus();
  rows = std::max(rows, max_rows_);
  cols = std::max(cols, max_cols_);
  ASSIGN_OR_RETURN(shared_, HostMemory::Allocate(rows * PreparedRowBytes(cols)));
  ASSIGN_OR_RETURN(private_, HostMemory::Allocate(pool_.threads() * kPrivateRows * PreparedRowBytes(cols)));
  // Elements of a row are no less than bf16: as bytes, and scales behind them, a panel takes less.
  ASSIGN_OR_RETURN(unpacked_, HostMemory::Allocate(pool_.threads() * PadToPanel(cols) * kPanelCols * InputBytes()));
  ASSIGN_OR_RETURN(row_, HostMemory::Allocate(pool_.threads() * PadToPanel(cols) * int64_t{sizeof(float)}));
  max_rows_ = rows;
  max_cols_ = cols;
  return absl::OkStatus();
}

void Linear::Run(const LinearOp& op) {
  const int64_t in_cols = op.weight->cols() * (op.prologue == Prologue::kSiluMul ? 2 : 1);
  CHECK_EQ(op.in->cols(), in_cols);
  CHECK_EQ(op.out->cols(), op.weight->rows());
  CHECK_LE(op.rows, op.out->rows());
  CHECK_LE(op.rows, max_rows_);
  CHECK_LE(op.weight->cols(), max_cols_);
  if (op.rows == 0) return;
  for (const PackedMatrix* part : static_cast<const PackedMatrix&>(*op.weight).parts()) {
    CHECK_LE(PreparedRowBytes(*part), MaxRowBytes());
    LinearOp of_part = op;
    of_part.weight = part;
    if (op.rows <= kPrivateRows) {
      RunPrivate(of_part);
    } else {
      RunShared(of_part);
    }
  }
}

void Linear::Prepare(const LinearOp& op, int64_t row, int worker, std::byte* out) const {
  const int64_t cols = op.weight->cols();
  const HostBuffer& in = AsHost(*op.in);
  const float* x = in.row(row);
  const auto& weight = static_cast<const PackedMatrix&>(*op.weight);
  const bool int8 = IsInt8(weight);
  float* f32 = int8 || bf16_rows_ ? row_.as<float>() + worker * PadToPanel(max_cols_) : reinterpret_cast<float*>(out);
  switch (op.prologue) {
    case Prologue::kNone:
      CopyRow(x, cols, f32);
      break;
    case Prologue::kRmsNorm:
      kernels_.rms_norm(x, AsHost(*op.norm).row(0), cols, op.eps, f32);
      break;
    case Prologue::kSiluMul:
      kernels_.silu_mul(x, x + cols, cols, f32);
      break;
  }
  if (int8) {
    const QuantizedLayout& layout = *weight.quantized();
    const int64_t groups = cols / kInt8Inputs;
    auto* const first = reinterpret_cast<Int8Group*>(out);
    kernels_.to_int8(f32, groups, layout.zero, layout.inputs, first);
    if (weight.int8_rows() != Int8Rows::kTwice) return;
    kernels_.residual(f32, groups, first);
    return kernels_.to_int8(f32, groups, layout.zero, layout.inputs, first + groups);
  }
  if (bf16_rows_) kernels_.to_bf16(f32, cols, reinterpret_cast<Bf16*>(out));
  if (!weight.quantized() || !weight.quantized()->has_minima) return;
  auto* const sums = reinterpret_cast<float*>(out + PadToPanel(cols) * InputBytes());
  if (bf16_rows_) {
    SumBlocks(reinterpret_cast<const Bf16*>(out), weight.blocks(), sums);
  } else {
    SumBlocks(f32, weight.blocks(), sums);
  }
}

void Linear::Panel(const LinearOp& op, const std::byte* prepared, int64_t panel, int64_t row, int64_t rows,
                   int worker) const {
  const auto& weight = static_cast<const PackedMatrix&>(*op.weight);
  if (weight.quantized()) return QuantizedPanel(op, prepared, panel, row, rows, worker);
  const HostBuffer& out = AsHost(*op.out);
  PanelGemm gemm;
  gemm.a = prepared;
  gemm.lda = PreparedRowBytes(weight.cols()) / InputBytes();
  const PanelPiece piece = PackedPiece(weight.panel(panel));
  gemm.b = {&piece, 1};
  gemm.ahead = kAhead;
  gemm.k = weight.steps();
  const int64_t first = weight.first_row() + panel * kPanelCols;
  gemm.c = out.row(row) + first;
  gemm.ldc = out.stride();
  gemm.rows = rows;
  gemm.bias = op.bias == nullptr ? nullptr : AsHost(*op.bias).row(0) + first;
  gemm.add = op.add;
  if (weight.precision() == Precision::kF32) {
    kernels_.gemm_f32(gemm);
  } else if (bf16_rows_) {
    kernels_.gemm_bf16(gemm);
  } else {
    kernels_.gemm_bf16_weights(gemm);
  }
}

void Linear::QuantizedPanel(const LinearOp& op, const std::byte* prepared, int64_t panel, int64_t row, int64_t rows,
                            int worker) const {
  const auto& weight = static_cast<const PackedMatrix&>(*op.weight);
  const HostBuffer& out = AsHost(*op.out);
  const int64_t row_bytes = PreparedRowBytes(weight);
  const bool int8 = IsInt8(weight);
  QuantizedGemm gemm;
  gemm.a = prepared;
  gemm.sums = reinterpret_cast<const float*>(prepared + PadToPanel(weight.cols()) * InputBytes());
  gemm.lda = int8 ? weight.cols() / kInt8Inputs : row_bytes / InputBytes();
  gemm.ld_sums = row_bytes / int64_t{sizeof(float)};
  gemm.b = weight.panel(panel);
  gemm.blocks = weight.blocks();
  gemm.layout = *weight.quantized();
  gemm.scratch = unpacked_.data() + worker * PadToPanel(max_cols_) * kPanelCols * InputBytes();
  const int64_t first = weight.first_row() + panel * kPanelCols;
  gemm.c = out.row(row) + first;
  gemm.ldc = out.stride();
  gemm.rows = rows * NumInt8Rows(weight);
  gemm.pairs = weight.int8_rows() == Int8Rows::kTwice;
  gemm.bias = op.bias == nullptr ? nullptr : AsHost(*op.bias).row(0) + first;
  gemm.add = op.add;
  (int8 ? kernels_.quantized_int8 : bf16_rows_ ? kernels_.quantized_bf16 : kernels_.quantized)(gemm);
}

template <typename RowsOf>
void Linear::StreamPanels(const LinearOp& op, const RowsOf& rows_of) {
  const int64_t panels = static_cast<const PackedMatrix&>(*op.weight).panels();
  runs_.clear();
  for (int64_t first = 0; first < panels;) {
    runs_.push_back(first);
    first += std::max<int64_t>(1, (panels - first) / (2 * pool_.threads()));
  }
  runs_.push_back(panels);
  pool_.ParallelFor(runs_.size() - 1, [&](int64_t run, int worker) {
    const std::byte* rows = rows_of(worker);
    for (int64_t panel = runs_[run]; panel < runs_[run + 1]; ++panel) Panel(op, rows, panel, 0, op.rows, worker);
  });
}

void Linear::RunPrivate(const LinearOp& op) {
  const int64_t row_bytes = PreparedRowBytes(static_cast<const PackedMatrix&>(*op.weight));
  ++product_;
  StreamPanels(op, [&](int worker) {
    std::byte* rows = private_.data() + worker * kPrivateRows * MaxRowBytes();
    if (std::exchange(prepared_[worker].product, product_) != product_) {
      for (int64_t r = 0; r < op.rows; ++r) Prepare(op, r, worker, rows + r * row_bytes);
    }
    return rows;
  });
}

void Linear::RunShared(const LinearOp& op) {
  const auto& weight = static_cast<const PackedMatrix&>(*op.weight);
  const int64_t panels = weight.panels(), row_bytes = PreparedRowBytes(weight);
  const int64_t chunk = std::clamp<int64_t>(op.rows / (2 * pool_.threads()), 1, 8);
  pool_.ParallelFor(CeilDiv(op.rows, chunk), [&](int64_t item, int worker) {
    const int64_t end = std::min(op.rows, (item + 1) * chunk);
    for (int64_t r = item * chunk; r < end; ++r) Prepare(op, r, worker, shared_.data() + r * row_bytes);
  });
  if (op.rows <= kStreamedRows) return StreamPanels(op, [this](int) { return shared_.data(); });
  pool_.ParallelFor(CeilDiv(op.rows, kRowBlock) * panels, [&](int64_t item, int worker) {
    const int64_t row = item / panels * kRowBlock;
    Panel(op, shared_.data() + row * row_bytes, item % panels, row, std::min(kRowBlock, op.rows - row), worker);
  });
}

}  // namespace swiftcache::engine::backend::cpu
