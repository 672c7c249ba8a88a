// SPDX-License-Identifier: Apache-2.0
#include "engine/backend/cpu/cpu_backend.h"

#include <glog/logging.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "common/base/units.h"
#include "engine/backend/check_shapes.h"
#include "engine/backend/cpu/attention.h"
#include "engine/backend/cpu/core_share.h"
#include "engine/backend/cpu/dequantize.h"
#include "engine/backend/cpu/host_buffer.h"
#include "engine/backend/cpu/int8_row.h"
#include "engine/backend/cpu/kernels.h"
#include "engine/backend/cpu/linear.h"
#include "engine/backend/cpu/memory.h"
#include "engine/backend/cpu/packed_matrix.h"
#include "engine/backend/cpu/sampler.h"
#include "engine/backend/cpu/sampling_kernels.h"
#include "engine/backend/cpu/thread_pool.h"

namespace swiftcache::engine::backend::cpu {
namespace {

// Whether products of two int8 rows take less time than of one in f32. Without VNNI, codes of 8 bits are multiplied fast
// as f32, and slowly as integers. bf16 has instructions of its own, and rounds more.
bool TwiceIsFaster(Isa isa, WeightFormat format) {
  if (isa == Isa::kBaseline || MultipliesBf16(isa)) return false;
  return isa == Isa::kAvxVnni || isa == Isa::kAvx512Vnni || format != WeightFormat::kQ8_0;
}

class CpuBackend final : public Backend {
 public:
  explicit CpuBackend(const CpuBackendOptions& options)
      : isa_(BestIsa(options.max_isa)),
        precision_(options.precision),
        max_rows_(options.max_rows),
        core_share_(options.core_share),
        pool_(options.threads, options.core_share),
        activations_(options.activations),
        bf16_rows_(precision_ == Precision::kBf16 && MultipliesBf16(isa_) && activations_ != Activations::kF32),
        linear_(KernelsFor(isa_), bf16_rows_, pool_),
        attention_({options.attention, options.kv, options.inverse_frequencies, options.max_rows, options.precision,
                    options.space},
                   KernelsFor(isa_), pool_),
        sampler_(SamplingKernelsFor(isa_), pool_) {
    weights_.packed = PrecisionName();
  }

  absl::Status Reserve() { return attention_.Reserve(); }

  std::string name() const override { return absl::StrCat("cpu/", IsaName(isa_), "/", PrecisionName()); }

  absl::StatusOr<std::unique_ptr<Matrix>> PackMatrix(std::span<const WeightSource> stacked,
                                                     Exactness exactness) override {
    const auto int8_rows = [&](WeightFormat format) { return Int8RowsOf(format, exactness); };
    ASSIGN_OR_RETURN(auto matrix, PackedMatrix::Pack(stacked, precision_, int8_rows, arena_, pool_));
    for (size_t i = 0; i < stacked.size(); ++i) Report(stacked[i].format, matrix->rounding()[i]);
    for (const PackedMatrix* part : matrix->parts()) {
      (part->quantized() ? packs_stored_ : packs_rounded_) = true;
      rows_.insert(part->int8_rows());
    }
    weights_.rows = absl::StrJoin(rows_, " and ", [&](std::string* out, Int8Rows rows) { *out += NameOf(rows); });
    weights_.packed = !packs_stored_ ? PrecisionName() : packs_rounded_ ? "stored and bf16" : "stored";
    RETURN_IF_ERROR(linear_.Reserve(max_rows_, matrix->cols()));
    return std::unique_ptr<Matrix>(std::move(matrix));
  }

  absl::StatusOr<std::unique_ptr<Buffer>> Allocate(int64_t rows, int64_t cols) override {
    ASSIGN_OR_RETURN(auto buffer, HostBuffer::Allocate(rows, cols));
    return std::unique_ptr<Buffer>(std::move(buffer));
  }

  absl::StatusOr<std::unique_ptr<Buffer>> AllocateRounded(int64_t rows, int64_t cols) override {
    return Allocate(rows, cols);
  }

  absl::StatusOr<std::unique_ptr<Buffer>> UploadVector(std::span<const WeightSource> parts) override {
    int64_t cols = 0;
    for (const WeightSource& part : parts) cols += part.cols;
    ASSIGN_OR_RETURN(auto buffer, HostBuffer::Allocate(1, cols));
    float* out = buffer->row(0);
    for (const WeightSource& part : parts) {
      CHECK_EQ(part.rows, 1);
      DequantizeRow(part, 0, out);
      out += part.cols;
    }
    return std::unique_ptr<Buffer>(std::move(buffer));
  }

  const WeightReport& weights() const override { return weights_; }

  absl::Status ReserveSampling(int64_t, int64_t) override { return absl::OkStatus(); }  // some KiB, as they come
  absl::StatusOr<std::span<const float>> Download(Buffer& buffer, int64_t rows) override {
    const HostBuffer& host = AsHost(buffer);
    CHECK_LE(rows, host.rows());
    for (int64_t r = 1; r < rows && host.stride() != host.cols(); ++r) {
      std::memmove(host.row(0) + r * host.cols(), host.row(r), host.cols() * sizeof(float));
    }
    return std::span<const float>(host.row(0), rows * host.cols());
  }

  absl::Status BeginStep(std::span<const StepSequence> sequences, std::span<const StreamedBlock> streamed) override {
    if (core_share_ != nullptr) core_share_->Enter();
    attention_.BeginStep(sequences, streamed);
    return absl::OkStatus();
  }

  absl::Status Embed(const Matrix& table, std::span<const int32_t> ids, Buffer& out) override {
    const auto& matrix = static_cast<const PackedMatrix&>(table);
    const HostBuffer& host = AsHost(out);
    CHECK_EQ(matrix.cols(), host.cols());
    CHECK_LE(static_cast<int64_t>(ids.size()), host.rows());
    pool_.ParallelFor(ids.size(), [&](int64_t i, int worker) {
      matrix.ReadRow(ids[i] >= 0 ? ids[i] : sampled_.at(-1 - ids[i]), host.row(i));
    });
    return absl::OkStatus();
  }

  absl::Status Linear(const LinearOp& op) override {
    linear_.Run(op);
    return absl::OkStatus();
  }

  absl::Status KeepRows(std::span<const int32_t> rows, std::span<Buffer* const> buffers) override {
    for (const Buffer* buffer : buffers) {
      const HostBuffer& host = AsHost(*buffer);
      int64_t to = 0;
      for (const int32_t from : rows) std::copy_n(host.row(from), host.cols(), host.row(to++));
    }
    return absl::OkStatus();
  }

  absl::Status RopeAndStoreKv(const RopeOp& op) override {
    attention_.RopeAndStoreKv(op);
    return absl::OkStatus();
  }

  absl::Status Attention(int64_t layer, const Buffer& qkv, Buffer& out) override {
    attention_.Attend(layer, AsHost(qkv), AsHost(out));
    return absl::OkStatus();
  }

  absl::Status Sample(const Buffer& logits, std::span<const SampleRow> rows, std::span<Sampled> out) override {
    RETURN_IF_ERROR(sampler_.Sample(AsHost(logits), rows, out));
    sampled_.clear();
    for (const Sampled& token : out)
      sampled_.push_back(token.ok() ? token->token_id : 0);  // a row that failed is of nobody
    return absl::OkStatus();
  }

  void WaitFor(const Fence& fence) override { fence.Wait(); }
  Fence Submitted() override { return {}; }
  Fence EndStep(absl::Status& status) override {
    if (core_share_ != nullptr) core_share_->Leave();
    return {};
  }
  absl::Status CheckWords(std::span<const WordCheck> checks, std::vector<int32_t>& changed) override {
    for (size_t i = 0; i < checks.size(); ++i) {
      if (!checks[i].Holds()) changed.push_back(static_cast<int32_t>(i));
    }
    return absl::OkStatus();
  }

 private:
  Int8Rows Int8RowsOf(WeightFormat format, Exactness exactness) const {
    if (activations_ == Activations::kInt8) return Int8Rows::kOnce;
    if (activations_ != Activations::kAuto || isa_ == Isa::kBaseline) return Int8Rows::kNone;
    if (exactness == Exactness::kUsual) return Int8Rows::kOnce;
    return TwiceIsFaster(isa_, format) ? Int8Rows::kTwice : Int8Rows::kNone;
  }
  const char* NameOf(Int8Rows rows) const {
    if (rows == Int8Rows::kNone) return bf16_rows_ ? "bf16" : "f32";
    return rows == Int8Rows::kOnce ? "int8" : "int8 twice";
  }
  const char* PrecisionName() const { return precision_ == Precision::kF32 ? "f32" : "bf16"; }

  void Report(WeightFormat stored, const PackedMatrix::Rounding& rounding) {
    ++weights_.stored[stored];
    if (rounding.rounds) ++weights_.rounded;
    weights_.largest_relative_error =
        std::max<double>(weights_.largest_relative_error, rounding.largest_relative_error);
  }

  const Isa isa_;
  const Precision precision_;
  const int64_t max_rows_;
  CoreShare* const core_share_;
  ThreadPool pool_;
  WeightArena arena_;
  WeightReport weights_;
  bool packs_stored_ = false, packs_rounded_ = false;
  std::set<Int8Rows> rows_;  // of what was packed
  const Activations activations_;
  const bool bf16_rows_;  // where they are not int8
  cpu::Linear linear_;
  PagedAttention attention_;
  Sampler sampler_;
  std::vector<int32_t> sampled_;  // by the last call
};

absl::Status Check(const CpuBackendOptions& o) {
  if (o.threads < 1) {
    return absl::InvalidArgumentError(absl::StrCat("threads is ", o.threads, ", wanted at least 1"));
  }
  if (o.activations == Activations::kInt8 && BestIsa(o.max_isa) == Isa::kBaseline) {
    return absl::InvalidArgumentError("activations are int8, which wants AVX2; wanted auto, f32 or bf16");
  }
  if (o.max_rows < 1) {
    return absl::InvalidArgumentError(absl::StrCat("max_rows is ", o.max_rows, ", wanted at least 1"));
  }
  return CheckShapes(o.attention, o.kv, o.inverse_frequencies.size());
}

}  // namespace

absl::StatusOr<std::unique_ptr<Backend>> CreateCpuBackend(const CpuBackendOptions& options) {
  RETURN_IF_ERROR(Check(options));
  auto backend = std::make_unique<CpuBackend>(options);
  RETURN_IF_ERROR(backend->Reserve());
  return std::unique_ptr<Backend>(std::move(backend));
}

}  // namespace swiftcache::engine::backend::cpu
