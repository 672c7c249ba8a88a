// SPDX-License-Identifier: Apache-2.0
// What one rendering may use: steps, memory that is alive at one time, and depth of recursion.
//
//   Budget budget({.max_steps = 2'000'000});
//   RETURN_IF_ERROR(budget.Spend(1));
//   Charge charge(budget);
//   RETURN_IF_ERROR(charge.Grow(1024));  // returned to the budget when `charge` is destroyed
#pragma once

#include <cstdint>

#include "absl/status/status.h"

namespace swiftcache::gateway::text::jinja {

struct Limits {
  int64_t max_steps = 2'000'000;
  int64_t max_output_bytes = 64 << 20;
  int64_t max_memory_bytes = 512 << 20;
  int max_depth = 600;  // nested evaluations; one takes well under 8 KiB of stack, also with sanitizers
};

/// Thread-safety: none, one per rendering. Ownership: outlives every Charge made from it.
/// Errors: RESOURCE_EXHAUSTED names the limit. Units: a step is about one node of the syntax tree, or 256 bytes copied.
class Budget {
 public:
  explicit Budget(const Limits& limits) : limits_(limits) {}
  Budget(const Budget&) = delete;
  Budget& operator=(const Budget&) = delete;

  absl::Status Spend(int64_t steps) {
    if (steps <= limits_.max_steps - steps_) [[likely]] {
      steps_ += steps;
      return absl::OkStatus();
    }
    return TooManySteps();
  }
  /// Steps for reading or writing `bytes` bytes; many small ones count as much as one large.
  absl::Status SpendBytes(int64_t bytes) {
    unspent_bytes_ += bytes % kBytesPerStep;
    const int64_t carried = unspent_bytes_ / kBytesPerStep;
    unspent_bytes_ %= kBytesPerStep;
    return Spend(bytes / kBytesPerStep + carried);
  }
  absl::Status Enter();
  void Leave() { --depth_; }

  const Limits& limits() const { return limits_; }

 private:
  friend class Charge;
  static constexpr int64_t kBytesPerStep = 256;
  absl::Status TooManySteps() const;
  absl::Status Reserve(int64_t bytes);

  const Limits limits_;
  int64_t steps_ = 0;
  int64_t unspent_bytes_ = 0;  // less than a step
  int64_t memory_bytes_ = 0;
  int depth_ = 0;
};

/// Memory taken from a budget until this dies. A default-constructed one is free (constants, inputs).
/// Thread-safety: none. Ownership: borrows the budget. Errors: RESOURCE_EXHAUSTED, and nothing is taken.
class Charge {
 public:
  Charge() = default;
  explicit Charge(Budget& budget) : budget_(&budget) {}
  Charge(Charge&& other) noexcept;
  Charge& operator=(Charge&& other) noexcept;
  ~Charge();
  absl::Status Grow(int64_t bytes);
  /// Steps of the budget that the memory comes from.
  absl::Status Spend(int64_t steps) { return budget_ == nullptr ? absl::OkStatus() : budget_->Spend(steps); }

 private:
  Budget* budget_ = nullptr;
  int64_t bytes_ = 0;
};

/// Counts one level of recursion while it lives.
class DepthGuard {
 public:
  explicit DepthGuard(Budget& budget) : budget_(budget), status_(budget.Enter()) {}
  DepthGuard(const DepthGuard&) = delete;
  ~DepthGuard() { budget_.Leave(); }
  const absl::Status& status() const { return status_; }

 private:
  Budget& budget_;
  absl::Status status_;
};

}  // namespace swiftcache::gateway::text::jinja
