// SPDX-License-Identifier: Apache-2.0
// Kernels of a step on their way to a stream. Those of a step that may come again, as one of decoding does, are kept
// back for a layer or so and given together: as a graph, which costs one call of the driver, where the same were given
// before.
//
//   queue.BeginStep(/*number=*/step, /*repeats=*/true);
//   RETURN_IF_ERROR(queue.Add(PrepareOp{...}));
//   RETURN_IF_ERROR(queue.Add(ProductOp{...}));
//   RETURN_IF_ERROR(queue.Flush());                        // before anything else of the stream that comes behind them
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "engine/backend/cuda/driver.h"
#include "engine/backend/cuda/kernels.h"

namespace swiftcache::engine::backend::cuda {

/// What Kernels offers, of a step. What its pointers lead to is no part of it: that is read when the kernel runs.
using KernelCall =
    std::variant<UnpackOp, PrepareOp, ProductOp, QuantizedProductOp, KeepOp, RotationsOp, RotateOp, AttendOp, ChooseOp>;

/// A graph is what one Flush gave, of one of the kinds of steps that take turns (so that each has memory of its own for
/// what it reads), at one place of the step. It is made when the same calls come a second time, and kept until kVariants
/// others have come to its place. Where the driver refuses to make it, the calls are given one by one, as at first.
/// Thread-safety: none. Ownership: owns the graphs, borrows the rest. Errors: the driver's and the kernels'; then
/// nothing is known of what was kept back, and it is not given again.
class KernelQueue {
 public:
  static constexpr int kKinds = 2;
  static constexpr size_t kVariants = 16;  // numbers of rows that a busy engine goes to and fro between
  /// `graphs`: whether there are to be any.
  KernelQueue(Driver& driver, Kernels& kernels, Stream stream, bool graphs);
  ~KernelQueue();
  KernelQueue(const KernelQueue&) = delete;
  KernelQueue& operator=(const KernelQueue&) = delete;

  /// REQUIRES: flushed. 0 <= kind < kKinds.
  void BeginStep(int kind, bool repeats);
  /// What is added from here on is given at once. REQUIRES: flushed.
  void EndStep() { keeps_back_ = false; }
  absl::Status Add(const KernelCall& call);
  absl::Status Flush();

 private:
  struct Variant {
    std::vector<KernelCall> calls;
    std::optional<Graph> graph;
    bool refused = false;
    int64_t used = 0;  // when: the number of its last Flush
  };
  using Place = std::vector<Variant>;  // at most kVariants

  absl::Status Give(const KernelCall& call);
  absl::Status GiveAll(const std::vector<KernelCall>& calls);
  Variant& VariantAt(Place& place, bool& is_new);
  absl::Status Make(Variant& variant);

  Driver& driver_;
  Kernels& kernels_;
  const Stream stream_;
  const bool graphs_;
  std::array<std::vector<Place>, kKinds> places_;
  std::vector<KernelCall> calls_;  // kept back
  bool keeps_back_ = false;
  int kind_ = 0;
  size_t place_ = 0;  // of the step: how often it was flushed
  int64_t flushes_ = 0;
};

}  // namespace swiftcache::engine::backend::cuda
