// SPDX-License-Identifier: Apache-2.0
// A backend that computes late: it takes a step in, and gets to it by and by, on addresses that are none of the host's.
//
//   LateQueue queue({.pace = LateQueue::Pace::kThread, .seed = seed});
//   options.space = AddressSpace(LateKvMemory::kTurnedBits);
//   auto backend = std::make_unique<LateBackend>(*CreateCpuBackend(options), &queue);
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/backend/backend.h"
#include "glog/logging.h"
#include "tests/fakes/late_queue.h"

namespace swiftcache {

/// Thread-safety: Backend's. Ownership: owns the backend that computes, borrows the queue. Errors: that one's and
/// FailAfter's: at once before a step; in a step when it gets there, and nothing after it is done.
class LateBackend final : public engine::backend::Backend {
 public:
  LateBackend(std::unique_ptr<engine::backend::Backend> backend, LateQueue* queue)
      : backend_(std::move(backend)), queue_(*queue) {}
  ~LateBackend() override { queue_.Submitted().Wait(); }

  std::string name() const override { return "late " + backend_->name(); }
  absl::StatusOr<std::unique_ptr<engine::backend::Matrix>> PackMatrix(
      std::span<const engine::backend::WeightSource> stacked, engine::backend::Exactness exactness) override {
    return Idle().PackMatrix(stacked, exactness);
  }
  absl::StatusOr<std::unique_ptr<engine::backend::Buffer>> Allocate(int64_t rows, int64_t cols) override {
    return Idle().Allocate(rows, cols);
  }
  absl::StatusOr<std::unique_ptr<engine::backend::Buffer>> AllocateRounded(int64_t rows, int64_t cols) override {
    return Idle().AllocateRounded(rows, cols);
  }
  absl::StatusOr<std::unique_ptr<engine::backend::Buffer>> UploadVector(
      std::span<const engine::backend::WeightSource> parts) override {
    return Idle().UploadVector(parts);
  }
  absl::Status ReserveSampling(int64_t rows, int64_t vocab) override { return Idle().ReserveSampling(rows, vocab); }
  const engine::backend::WeightReport& weights() const override { return backend_->weights(); }
  absl::StatusOr<std::span<const float>> Download(engine::backend::Buffer& buffer, int64_t rows) override {
    return Idle().Download(buffer, rows);
  }

  absl::Status BeginStep(std::span<const engine::backend::StepSequence> sequences,
                         std::span<const engine::backend::StreamedBlock> streamed) override {
    auto step = std::make_shared<Step>();
    step->streamed.assign(streamed.begin(), streamed.end());
    for (const auto& sequence : sequences) {
      step->blocks.emplace_back(sequence.blocks.begin(), sequence.blocks.end());
      step->sequences.push_back({sequence.num_rows, sequence.context_tokens, step->blocks.back()});
    }
    return Later([this, step] { return backend_->BeginStep(step->sequences, step->streamed); });
  }
  absl::Status Embed(const engine::backend::Matrix& table, std::span<const int32_t> ids,
                     engine::backend::Buffer& out) override {
    return Later(
        [this, &table, &out, ids = std::vector(ids.begin(), ids.end())] { return backend_->Embed(table, ids, out); });
  }
  absl::Status Linear(const engine::backend::LinearOp& op) override {
    return Later([this, op] { return backend_->Linear(op); });
  }
  absl::Status KeepRows(std::span<const int32_t> rows, std::span<engine::backend::Buffer* const> buffers) override {
    return Later([this, rows = std::vector(rows.begin(), rows.end()),
                  buffers = std::vector(buffers.begin(), buffers.end())] { return backend_->KeepRows(rows, buffers); });
  }
  absl::Status RopeAndStoreKv(const engine::backend::RopeOp& op) override {
    return Later([this, op] { return backend_->RopeAndStoreKv(op); });
  }
  absl::Status Attention(int64_t layer, const engine::backend::Buffer& qkv, engine::backend::Buffer& out) override {
    return Later([this, layer, &qkv, &out] { return backend_->Attention(layer, qkv, out); });
  }
  absl::Status Sample(const engine::backend::Buffer& logits, std::span<const engine::backend::SampleRow> rows,
                      std::span<engine::backend::Sampled> out) override {
    auto wanted = std::make_shared<Wanted>();
    wanted->rows.assign(rows.begin(), rows.end());
    for (auto& row : wanted->rows) {
      row.seen = wanted->seen.emplace_back(row.seen.begin(), row.seen.end());
    }
    return Later([this, wanted, &logits, out] { return backend_->Sample(logits, wanted->rows, out); });
  }
  void WaitFor(const engine::backend::Fence& fence) override {
    queue_.Submit([fence] { fence.Wait(); });
  }
  engine::backend::Fence Submitted() override { return queue_.Submitted(); }
  engine::backend::Fence EndStep(absl::Status& status) override {
    queue_.Submit([this, &status] { status.Update(std::exchange(failure_, absl::OkStatus())); });
    return queue_.Submitted();
  }
  absl::Status CheckWords(std::span<const engine::backend::WordCheck> checks, std::vector<int32_t>& changed) override {
    return Later([this, checks, &changed] { return backend_->CheckWords(checks, changed); });
  }

  /// The operation after the next `operations` of steps fails when the device gets to it. Before a step.
  void FailAfter(int64_t operations, absl::Status status) {
    operations_left_ = operations;
    planted_ = std::move(status);
  }

 private:
  struct Step {
    std::vector<std::vector<engine::backend::DeviceAddress>> blocks;
    std::vector<engine::backend::StepSequence> sequences;
    std::vector<engine::backend::StreamedBlock> streamed;
  };
  struct Wanted {
    std::vector<engine::backend::SampleRow> rows;
    std::deque<std::vector<engine::sample::SeenToken>> seen;
  };
  engine::backend::Backend& Idle() {
    queue_.Submitted().Wait();
    return *backend_;
  }
  template <typename Work>
  absl::Status Later(Work work) {
    queue_.Submit([this, work = std::move(work)]() mutable {
      if (!planted_.ok() && operations_left_-- == 0) failure_.Update(std::exchange(planted_, absl::OkStatus()));
      if (failure_.ok()) failure_.Update(work());
    });
    return absl::OkStatus();
  }

  const std::unique_ptr<engine::backend::Backend> backend_;
  LateQueue& queue_;
  // The queue's, while it runs.
  absl::Status planted_, failure_;
  int64_t operations_left_ = 0;
};

}  // namespace swiftcache
