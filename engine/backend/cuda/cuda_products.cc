// SPDX-License-Identifier: Apache-2.0
// CudaBackend, the part that packs weights and multiplies by them.
#include <glog/logging.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "engine/backend/cuda/cuda_backend.h"

namespace swiftcache::engine::backend::cuda {
namespace {

// Products are computed of a few numbers of rows alone: each wants an algorithm of its own, which cuBLASLt takes its time
// to choose. The rows beyond `rows` are computed of what lies there, and nobody reads them.
int64_t ProductRows(int64_t rows) {
  for (const int64_t few : {1, 2, 4, 8, 16, 24, 32, 48, 64, 96}) {
    if (rows <= few) return few;
  }
  return (rows + 127) / 128 * 128;
}

// Where there are more rows than QuantizedProductOp takes, weights are decoded a panel of outputs at a time: large enough
// that its product keeps a GPU busy, small enough to stay in a large GPU's cache (40 MB and more) until it is read. In whole
// units, so that each begins where cuBLASLt takes it that matrices begin.
int64_t PanelOutputs(int64_t cols) {
  constexpr int64_t kPanelBytes = 32 << 20, kUnit = 128;
  return std::max<int64_t>(1, kPanelBytes / (cols * BytesOf(Number::kBf16)) / kUnit) * kUnit;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Matrix>> CudaBackend::PackMatrix(std::span<const WeightSource> stacked, Exactness) {
  const int64_t cols = stacked.front().cols;
  int64_t rows = 0;
  WeightFormat format = FormatOnDevice(stacked.front().format, options_.precision);
  for (const WeightSource& source : stacked) {
    CHECK_EQ(source.cols, cols);
    rows += source.rows;
    if (FormatOnDevice(source.format, options_.precision) != format) format = WeightFormat::kBf16;
  }
  // Now, before KV memory takes what is free: in a step it would come too late.
  RETURN_IF_ERROR(EnsureDevice(scratch_, options_.max_rows * cols * BytesOf(number_)));
  if (IsQuantized(format)) {
    RETURN_IF_ERROR(EnsureDevice(panel_, std::min(rows, PanelOutputs(cols)) * cols * BytesOf(number_)));
  }
  ASSIGN_OR_RETURN(DeviceBytes memory, DeviceBytes::Allocate(driver_, rows * RowBytes(format, cols), stream_));
  PackedWeights to = PackedAt(format, memory.address(), rows, cols);
  for (const WeightSource& source : stacked) {
    RETURN_IF_ERROR(uploader_.Upload(source, to));
    to = FromRow(to, source.rows, cols);
    Report(source.format, format);
  }
  return std::unique_ptr<Matrix>(std::make_unique<DeviceMatrix>(std::move(memory), format, rows, cols));
}

void CudaBackend::Report(WeightFormat stored, WeightFormat packed) {
  ++weights_.stored[stored];
  if (number_ == Number::kF32) return;
  if (stored != WeightFormat::kBf16) {
    ++weights_.rounded;
    weights_.largest_relative_error = 0x1p-9;  // of rounding to eight significant bits: a bound, nobody looked
  }
  if (IsQuantized(packed)) {
    quantized_.insert(packed);
  } else {
    decoded_others_ = true;
  }
  if (quantized_.empty()) return;
  const auto name = [](std::string* out, WeightFormat format) { absl::StrAppend(out, NameOf(format)); };
  weights_.packed =
      absl::StrCat(absl::StrJoin(quantized_, "+", name), decoded_others_ ? "+bf16" : "", " (multiplied as bf16)");
}

absl::Status CudaBackend::Embed(const Matrix& table, std::span<const int32_t> ids, Buffer& out) {
  const DeviceMatrix& matrix = AsDevice(table);
  const DeviceBuffer& to = AsDevice(out);
  CHECK_EQ(matrix.cols(), to.cols());
  CHECK_LE(static_cast<int64_t>(ids.size()), to.rows());
  if (ids.empty()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const int32_t* device_ids, step().uploads.Put(ids));
  RETURN_IF_ERROR(step().uploads.Send(stream_));
  return queue_.Add(UnpackOp{.from = matrix.weights(),
                             .cols = matrix.cols(),
                             .ids = device_ids,
                             .chosen = chosen_.as<int32_t>(),
                             .rows = static_cast<int64_t>(ids.size()),
                             .out = to.data()});
}

absl::Status CudaBackend::Linear(const LinearOp& op) {
  const DeviceMatrix& weight = AsDevice(*op.weight);
  const DeviceBuffer &in = AsDevice(*op.in), &out = AsDevice(*op.out);
  CHECK_EQ(in.cols(), op.prologue == Prologue::kSiluMul ? 2 * weight.cols() : weight.cols());
  CHECK_EQ(out.cols(), weight.rows());
  CHECK_LE(op.rows, out.rows());
  // What is as products read it is multiplied where it lies.
  const bool prepared = op.prologue == Prologue::kNone && in.number() == number_;
  CHECK(in.number() == Number::kF32 || op.prologue == Prologue::kSiluMul || prepared);
  CHECK(out.number() == Number::kF32 || (op.bias == nullptr && !op.add));
  if (op.rows == 0) return absl::OkStatus();
  const PackedWeights packed = weight.weights();
  const bool quantized = IsQuantized(packed.format) && op.rows <= QuantizedProductOp::kMostRows;
  const int64_t cols = weight.cols(), outputs = weight.rows(),
                most_rows = prepared ? std::min(in.rows(), out.rows()) : out.rows(),
                rows = quantized ? op.rows : std::min(ProductRows(op.rows), most_rows);
  const void* multiplied = in.numbers();
  if (!prepared) {
    RETURN_IF_ERROR(EnsureDevice(scratch_, rows * cols * BytesOf(number_)));
    multiplied = scratch_.as<void>();
    RETURN_IF_ERROR(queue_.Add(PrepareOp{.in = in.numbers(),
                                         .in_number = in.number(),
                                         .rows = op.rows,
                                         .cols = cols,
                                         .prologue = op.prologue,
                                         .norm = DataOrNull(op.norm),
                                         .eps = op.eps,
                                         .number = number_,
                                         .out = scratch_.as<void>()}));
  }
  if (quantized) {
    return queue_.Add(QuantizedProductOp{.in = static_cast<const Bf16*>(multiplied),
                                         .rows = rows,
                                         .weight = packed,
                                         .outputs = outputs,
                                         .cols = cols,
                                         .bias = DataOrNull(op.bias),
                                         .add = op.add,
                                         .out = out.numbers(),
                                         .out_number = out.number()});
  }
  const ProductOp product = {.in = multiplied,
                             .rows = rows,
                             .weight = packed.numbers,
                             .outputs = outputs,
                             .cols = cols,
                             .number = number_,
                             .bias = DataOrNull(op.bias),
                             .add = op.add,
                             .out = out.numbers(),
                             .out_number = out.number(),
                             .out_cols = outputs};
  return IsQuantized(packed.format) ? MultiplyByPanels(packed, product) : queue_.Add(product);
}

absl::Status CudaBackend::KeepRows(std::span<const int32_t> rows, std::span<Buffer* const> buffers) {
  if (rows.empty()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const int32_t* device_rows, step().uploads.Put(rows));
  RETURN_IF_ERROR(step().uploads.Send(stream_));
  for (const Buffer* buffer : buffers) {
    const DeviceBuffer& kept = AsDevice(*buffer);
    CHECK_LT(rows.back(), kept.rows());
    RETURN_IF_ERROR(queue_.Add(KeepOp{.rows = device_rows,
                                      .num_rows = static_cast<int64_t>(rows.size()),
                                      .cols = kept.cols(),
                                      .number = kept.number(),
                                      .data = kept.numbers()}));
  }
  return absl::OkStatus();
}

absl::Status CudaBackend::MultiplyByPanels(const PackedWeights& weight, const ProductOp& whole) {
  for (int64_t first = 0; first < whole.outputs; first += PanelOutputs(whole.cols)) {
    ProductOp product = whole;
    product.weight = panel_.as<void>();
    product.outputs = std::min(PanelOutputs(whole.cols), whole.outputs - first);
    if (product.bias != nullptr) product.bias += first;
    product.out = static_cast<std::byte*>(whole.out) + first * BytesOf(whole.out_number);
    RETURN_IF_ERROR(queue_.Add(UnpackOp{.from = FromRow(weight, first, whole.cols),
                                        .cols = whole.cols,
                                        .rows = product.outputs,
                                        .number = number_,
                                        .out = panel_.as<void>()}));
    RETURN_IF_ERROR(queue_.Add(product));
  }
  return absl::OkStatus();
}

}  // namespace swiftcache::engine::backend::cuda
