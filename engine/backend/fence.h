// SPDX-License-Identifier: Apache-2.0
// A point in somebody's work: a device's computing, or a transfer. Who is handed one waits for it, or asks.
//
//   Fence read = backend.Submitted();
//   if (!read.Passed()) read.Wait();      // now everything submitted before it is done
#pragma once

#include <memory>
#include <utility>

namespace swiftcache::engine::backend {

/// What stands behind a fence, of whoever does the work. Thread-safety: safe.
class FenceState {
 public:
  virtual ~FenceState() = default;
  virtual bool Passed() const = 0;  // once true, always true
  virtual void Wait() const = 0;    // until Passed, or until it is certain that it never will
  /// The fence that passes when this one does, where this one only tells how the host waits: a device that knows that one
  /// waits for it by itself. Null: there is none, or not now. It may come and go: ask once.
  virtual const FenceState* stands_for() const { return nullptr; }
};

/// A fence of nothing has passed: all fences of a device that computes at once are such. Thread-safety: a value; copies
/// are the same fence. Ownership: shares its state, so that it may outlive the work. Errors: the fence of work that failed
/// does not pass, and is not waited for for ever; why it failed is said elsewhere (Backend::EndStep).
class Fence {
 public:
  Fence() = default;
  explicit Fence(std::shared_ptr<const FenceState> state) : state_(std::move(state)) {}
  bool Passed() const { return state_ == nullptr || state_->Passed(); }
  void Wait() const {
    if (state_ != nullptr) state_->Wait();
  }
  /// For a device that knows its own; null where the fence is of nothing. Valid as long as this copy of the fence.
  const FenceState* state() const { return state_.get(); }

 private:
  std::shared_ptr<const FenceState> state_;
};

}  // namespace swiftcache::engine::backend
