// SPDX-License-Identifier: Apache-2.0
// What a device was given to do and has not done yet.
//
//   LateQueue queue({.pace = LateQueue::Pace::kThread, .seed = 7});
//   queue.Submit([&] { computed = true; });
//   queue.Submitted().Wait();
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <thread>
#include <utility>

#include "engine/backend/fence.h"

namespace swiftcache {

/// Runs what it is given, one after the other, in order. Thread-safety: safe with kThread, none otherwise. Ownership:
/// owns its thread; what is left at its end is run. Errors: none.
class LateQueue {
 public:
  enum class Pace {
    kAtOnce,    // within Submit
    kLockStep,  // as late as can be: when somebody waits for it, or by RunSome; the same run every time
    kThread,    // on a thread of its own, each after a delay
  };
  struct Options {
    Pace pace = Pace::kAtOnce;
    uint64_t seed = 1;  // of the delays
  };
  explicit LateQueue(const Options& options) : options_(options) {
    if (options_.pace == Pace::kThread) thread_ = std::thread([this] { Run(); });
  }
  ~LateQueue() {
    Submitted().Wait();
    {
      std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
    if (thread_.joinable()) thread_.join();
  }

  void Submit(std::function<void()> work) {
    if (options_.pace == Pace::kAtOnce) return work();
    std::lock_guard lock(mutex_);
    work_.push_back(std::move(work));
    ++submitted_;
    changed_.notify_all();
  }
  /// Plants a bug, with kLockStep: what is given comes out of its order, after `others` of what is given later.
  void SubmitBehind(int64_t others, std::function<void()> work) {
    late_ = std::move(work);
    late_at_ = submitted_ + others;
  }
  engine::backend::Fence Submitted() {
    if (options_.pace == Pace::kAtOnce) return {};
    std::lock_guard lock(mutex_);
    return engine::backend::Fence(std::make_shared<const Reached>(this, submitted_));
  }
  /// Runs up to `count` of what waits, with kLockStep; for a test that lets time pass.
  void RunSome(int64_t count) {
    if (options_.pace != Pace::kLockStep) return;
    for (; count > 0 && done_ < submitted_ && !running_; --count) RunNext();
  }

 private:
  struct Reached final : engine::backend::FenceState {
    Reached(LateQueue* queue, int64_t number) : queue(queue), number(number) {}
    bool Passed() const override {
      std::lock_guard lock(queue->mutex_);
      return queue->done_ >= number;
    }
    void Wait() const override { queue->WaitUntil(number); }
    LateQueue* const queue;
    const int64_t number;
  };

  void WaitUntil(int64_t number) {
    if (options_.pace == Pace::kLockStep) {
      while (done_ < number) RunNext();
      return;
    }
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return done_ >= number; });
  }
  void RunNext() {
    const std::function<void()> work = std::move(work_.front());
    work_.pop_front();
    running_ = true;  // what it runs may let time pass, too
    work();
    if (late_ && done_ >= late_at_) std::exchange(late_, nullptr)();
    running_ = false;
    ++done_;
  }
  void Run() {
    std::mt19937_64 random(options_.seed);
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return stopping_ || !work_.empty(); });
      if (work_.empty()) return;
      const std::function<void()> work = std::move(work_.front());
      work_.pop_front();
      lock.unlock();
      if (random() % 8 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 200));
      work();
      lock.lock();
      ++done_;
      changed_.notify_all();
    }
  }

  const Options options_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> work_;
  int64_t submitted_ = 0, done_ = 0;
  bool running_ = false, stopping_ = false;
  std::function<void()> late_;
  int64_t late_at_ = 0;
  std::thread thread_;
};

}  // namespace swiftcache
