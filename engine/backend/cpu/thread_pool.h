// SPDX-License-Identifier: Apache-2.0
// The threads of one engine's step: short parallel loops one after the other, and sleep when there is no step.
//
//   ThreadPool pool(2);
//   pool.ParallelFor(rows, [&](int64_t row, int worker) { Norm(row, scratch[worker]); });
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace swiftcache::engine::backend::cpu {

class CoreShare;

/// `threads` - 1 workers beside the caller, or as many as a CoreShare says when a loop begins. Items are claimed one by
/// one, so that a worker that the kernel has taken off its core delays nothing but the item it holds. Between loops a
/// worker spins for some 20 us, then sleeps.
/// Thread-safety: one thread calls ParallelFor. Ownership: joins its threads; borrows the share. Errors: none.
class ThreadPool {
 public:
  explicit ThreadPool(int threads, CoreShare* share = nullptr);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  /// Calls body(item, worker) for every item in [0, items), worker in [0, threads()); returns when all have ended.
  template <typename Body>
  void ParallelFor(int64_t items, const Body& body) {
    Run(items, &body,
        [](const void* context, int64_t item, int worker) { (*static_cast<const Body*>(context))(item, worker); });
  }

 private:
  using Function = void (*)(const void* context, int64_t item, int worker);

  // Two slots: a late worker that still looks at the last job's slot finds it unchanged until the ticket has moved on,
  // and then fails to claim.
  struct alignas(64) Job {
    std::atomic<Function> function{nullptr};
    std::atomic<const void*> context{nullptr};
    std::atomic<uint32_t> items{0};
    std::atomic<int> threads{0};  // that take part, the caller among them
    alignas(64) std::atomic<uint32_t> done{0};
  };

  void Run(int64_t items, const void* context, Function function);
  int ThreadsNow() const;
  void Work(uint32_t epoch, int worker);
  void AwaitDone(Job& job, uint32_t items);
  void WorkerLoop(int worker);
  bool TakesPartAfter(uint32_t epoch, int worker) const;
  bool SleepUntilAfter(uint32_t epoch, int worker);

  Job jobs_[2];
  alignas(64) std::atomic<uint64_t> ticket_{0};  // epoch << 32 | next item
  alignas(64) std::atomic<int> sleepers_{0};
  std::atomic<bool> caller_waits_{false};
  absl::Mutex mutex_;
  absl::CondVar wake_caller_;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  CoreShare* const share_;
  uint32_t epoch_ = 0;               // the caller's
  std::vector<absl::CondVar> wake_;  // of each worker
  std::vector<std::thread> workers_;
};

}  // namespace swiftcache::engine::backend::cpu
