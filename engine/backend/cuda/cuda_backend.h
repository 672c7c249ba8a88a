// SPDX-License-Identifier: Apache-2.0
// The backend for one NVIDIA GPU. Everything that it computes goes on one stream, in the order of the calls; the host is
// not waited for between BeginStep and EndStep.
//
//   ASSIGN_OR_RETURN(auto backend, CudaBackend::Create(options, driver, kernels));
//
// What is the same as on a CPU: the values of weights (in bf16 each is rounded, also one that stays quantised), the rules of
// sampling bit by bit. What is not: sums of products. A row's bits depend on how many rows a product has (cuBLASLt chooses
// by shape; one row by bf16 and few rows by quantised weights are multiplied by kernels of ours) and on how its attention
// was divided among blocks of threads, so the same prompt cut otherwise may differ in the last bits of its logits.
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/backend/backend.h"
#include "engine/backend/cuda/attention_plan.h"
#include "engine/backend/cuda/cuda_memory.h"
#include "engine/backend/cuda/driver.h"
#include "engine/backend/cuda/kernel_queue.h"
#include "engine/backend/cuda/kernels.h"
#include "engine/backend/cuda/step_fence.h"
#include "engine/backend/cuda/uploads.h"
#include "engine/backend/cuda/weight_uploader.h"
#include "engine/backend/device.h"

namespace swiftcache::engine::backend::cuda {

/// Thread-safety, errors: Backend's. Ownership: borrows driver, kernels and stream, which outlive it and its fences.
class CudaBackend final : public Backend {
 public:
  /// `graphs`: steps of decoding that are alike are given to the driver as graphs.
  static absl::StatusOr<std::unique_ptr<Backend>> Create(const BackendOptions& options, Driver& driver,
                                                         Kernels& kernels, Stream stream, bool graphs);
  ~CudaBackend() override;

  std::string name() const override;
  absl::StatusOr<std::unique_ptr<Matrix>> PackMatrix(std::span<const WeightSource> stacked, Exactness) override;
  absl::StatusOr<std::unique_ptr<Buffer>> UploadVector(std::span<const WeightSource> parts) override;
  const WeightReport& weights() const override { return weights_; }
  absl::StatusOr<std::unique_ptr<Buffer>> Allocate(int64_t rows, int64_t cols) override {
    return AllocateOf(Number::kF32, rows, cols);
  }
  absl::StatusOr<std::unique_ptr<Buffer>> AllocateRounded(int64_t rows, int64_t cols) override {
    return AllocateOf(number_, rows, cols);
  }
  absl::Status ReserveSampling(int64_t rows, int64_t vocab) override;
  absl::StatusOr<std::span<const float>> Download(Buffer& buffer, int64_t rows) override;

  absl::Status BeginStep(std::span<const StepSequence> sequences, std::span<const StreamedBlock> streamed) override;
  absl::Status Embed(const Matrix& table, std::span<const int32_t> ids, Buffer& out) override;
  absl::Status Linear(const LinearOp& op) override;
  absl::Status KeepRows(std::span<const int32_t> rows, std::span<Buffer* const> buffers) override;
  absl::Status RopeAndStoreKv(const RopeOp& op) override;
  absl::Status Attention(int64_t layer, const Buffer& qkv, Buffer& out) override;
  absl::Status Sample(const Buffer& logits, std::span<const SampleRow> rows, std::span<Sampled> out) override;
  void WaitFor(const Fence& fence) override;
  Fence Submitted() override;
  Fence EndStep(absl::Status& status) override;
  absl::Status CheckWords(std::span<const WordCheck> checks, std::vector<int32_t>& changed) override;

 private:
  // What belongs to one of two steps that may be under way at once.
  struct StepState {
    explicit StepState(Driver& driver) : uploads(driver) {}
    Uploads uploads;
    Fence done;          // of the step that used it last
    PinnedBytes chosen;  // ChosenToken [rows]
    PinnedBytes top;     // int32 and float [alternatives]
  };

  CudaBackend(const BackendOptions& options, Driver& driver, Kernels& kernels, Stream stream, bool graphs);
  absl::Status Reserve();
  const char* PrecisionName() const { return number_ == Number::kF32 ? "f32" : "bf16"; }
  void Report(WeightFormat stored, WeightFormat packed);
  absl::Status MultiplyByPanels(const PackedWeights& weight, const ProductOp& whole);
  int64_t group() const { return options_.attention.num_heads / options_.attention.num_kv_heads; }
  bool attends_by_products() const;
  int64_t BlockBytes(int64_t rows, int64_t kv_buffers) const;  // of a tile of so many rows
  int64_t KvBuffers(int64_t rows) const;                       // that there is memory for
  int64_t BlocksAtOnce() const;                                // of attention, on a multiprocessor
  AttentionPlanOptions plan_options() const;
  Number kv_number() const { return options_.kv.dtype == KvDtype::kF32 ? Number::kF32 : Number::kBf16; }
  KvShape kv_shape() const;
  absl::Status PutBlocks(std::span<const StepSequence> sequences, std::span<const StreamedBlock> streamed);
  absl::Status PutRows(std::span<const StepSequence> sequences);
  absl::StatusOr<std::vector<TokenChoice>> ChoicesOf(std::span<const SampleRow> rows, int64_t vocab);
  void Flush();
  void Finish();
  absl::StatusOr<std::unique_ptr<Buffer>> AllocateOf(Number number, int64_t rows, int64_t cols);
  absl::StatusOr<std::unique_ptr<DeviceBuffer>> PlaceVector(int64_t cols);
  absl::Status EnsurePinned(PinnedBytes& memory, int64_t bytes);
  absl::Status EnsureDevice(DeviceBytes& memory, int64_t bytes);
  StepState& step() { return steps_[step_]; }

  const BackendOptions options_;
  Driver& driver_;
  const Stream stream_;
  const Number number_;  // of weights, and of what enters products
  StepFences fences_;
  KernelQueue queue_;
  absl::Status order_;  // the first failure of a WaitFor or Flush since the last EndStep
  WeightReport weights_;
  std::set<WeightFormat> quantized_;  // formats of matrices that stay so
  bool decoded_others_ = false;       // matrices in `number_`
  DeviceBytes inverse_frequencies_, rotations_, partial_, scratch_, panel_, chosen_, penalised_;
  PinnedBytes download_;
  std::shared_ptr<const DeviceBytes> vectors_;  // shared by those that lie in it
  int64_t vectors_used_ = 0;                    // bytes
  WeightUploader uploader_;

  StepState steps_[2];
  int step_ = 0;
  // Of the step that is being submitted.
  int64_t rows_ = 0;
  bool sampled_ = false;
  StepTables tables_;
  AttentionPlan plan_;
  const AttentionTile* tiles_ = nullptr;  // on the device
  const DividedTile* divided_ = nullptr;  // likewise
};

}  // namespace swiftcache::engine::backend::cuda
