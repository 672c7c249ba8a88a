// SPDX-License-Identifier: Apache-2.0
// What one client has not read of its responses yet, and whether it may leave more unread.
//
//   UnsentBytes unsent({.max_bytes = 4 << 20, .burst_time = absl::Seconds(1)}, of_all);
//   if (!unsent.HasRoom(bytes)) ...   // cut the stream
//   unsent.Add(bytes);                // and Remove, as they are written
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/time/time.h"
#include "common/base/byte_budget.h"

namespace swiftcache::http {

/// Thread-safety: safe. Ownership: shares the budget of all clients, since responses may outlive their server. Errors:
/// none; what is added is counted even beyond every limit, as a response that was made has to be sent.
class UnsentBytes {
 public:
  struct Limits {
    int64_t max_bytes;  // of this client: at once 16 times as many, for as long as burst_time
    absl::Duration burst_time;
  };
  /// A client may leave so much unread whatever others leave, so that nobody can keep others from being served.
  static constexpr int64_t kAlwaysBytes = 64 << 10;

  UnsentBytes(const Limits& limits, std::shared_ptr<ByteBudget> of_all)
      : max_bytes_(limits.max_bytes),
        burst_time_(absl::ToChronoNanoseconds(limits.burst_time)),
        of_all_(std::move(of_all)) {}

  void Add(int64_t bytes) {
    bytes_ += bytes;
    of_all_->TakeAnyway(bytes);
  }
  void Remove(int64_t bytes) {
    bytes_ -= bytes;
    of_all_->Give(bytes);
  }
  /// Whether a stream may add so many.
  bool HasRoom(int64_t bytes);
  /// Whether the client has to read before another request of its is answered.
  bool Behind() const;

 private:
  using Clock = std::chrono::steady_clock;

  const int64_t max_bytes_;
  const std::chrono::nanoseconds burst_time_;
  const std::shared_ptr<ByteBudget> of_all_;
  std::atomic<int64_t> bytes_{0};
  std::atomic<Clock::time_point> burst_end_{};  // from the last write that found no more unsent than may be for long
};

}  // namespace swiftcache::http
