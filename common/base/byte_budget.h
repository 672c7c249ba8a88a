// SPDX-License-Identifier: Apache-2.0
// How many bytes of one kind a process holds at once, over all of its requests.
//
//   ByteBudget budget(256 << 20);
//   ByteShare share(budget);
//   if (!share.Grow(bytes)) ...   // refuse the request; the destructor returns the share's bytes to the budget
#pragma once

#include <atomic>
#include <cstdint>
#include <utility>

namespace swiftcache {

/// Thread-safety: safe.
class ByteBudget {
 public:
  explicit ByteBudget(int64_t limit_bytes) : limit_bytes_(limit_bytes) {}

  int64_t limit_bytes() const { return limit_bytes_; }
  /// All or nothing.
  bool Take(int64_t bytes) {
    int64_t held = held_bytes_.load();
    do {
      if (bytes > limit_bytes_ - held) return false;
    } while (!held_bytes_.compare_exchange_weak(held, held + bytes));
    return true;
  }
  /// Takes more than there is if need be: for what exists already and cannot be refused.
  void TakeAnyway(int64_t bytes) { held_bytes_ += bytes; }
  bool HasRoom(int64_t bytes) const { return bytes <= limit_bytes_ - held_bytes_; }
  void Give(int64_t bytes) { held_bytes_ -= bytes; }

 private:
  const int64_t limit_bytes_;
  std::atomic<int64_t> held_bytes_{0};
};

/// What one request holds of a budget. Thread-safety: none; move-only. Ownership: borrows the budget, which outlives it
/// or its Reset.
class ByteShare {
 public:
  ByteShare() = default;  // has no budget and holds nothing
  explicit ByteShare(ByteBudget& budget) : budget_(&budget) {}
  ByteShare(ByteShare&& other) noexcept
      : budget_(std::exchange(other.budget_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  ByteShare& operator=(ByteShare&& other) noexcept {
    if (this == &other) return *this;
    Reset();
    budget_ = std::exchange(other.budget_, nullptr);
    bytes_ = std::exchange(other.bytes_, 0);
    return *this;
  }
  ~ByteShare() { Reset(); }

  int64_t bytes() const { return bytes_; }
  /// False: the budget has no more, and nothing was taken. REQUIRES: a budget, bytes >= 0.
  bool Grow(int64_t bytes) {
    if (bytes == 0) return true;
    if (!budget_->Take(bytes)) return false;
    bytes_ += bytes;
    return true;
  }
  void Reset() {
    if (budget_ != nullptr) budget_->Give(bytes_);
    budget_ = nullptr;
    bytes_ = 0;
  }

 private:
  ByteBudget* budget_ = nullptr;
  int64_t bytes_ = 0;
};

}  // namespace swiftcache
