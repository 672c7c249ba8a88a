// SPDX-License-Identifier: Apache-2.0
#include "engine/backend/cpu/thread_pool.h"

#include <algorithm>

#include "engine/backend/cpu/core_share.h"
#include "engine/backend/cpu/pause.h"

namespace swiftcache::engine::backend::cpu {
namespace {

constexpr int kSpins = 600;  // of a pause: about 20 us
constexpr int64_t kMaxItems = int64_t{1} << 31;

}  // namespace

ThreadPool::ThreadPool(int threads, CoreShare* share) : share_(share), wake_(threads) {
  for (int worker = 1; worker < threads; ++worker) workers_.emplace_back([this, worker] { WorkerLoop(worker); });
}

ThreadPool::~ThreadPool() {
  {
    absl::MutexLock lock(&mutex_);
    stop_ = true;
    for (absl::CondVar& wake : wake_) wake.Signal();
  }
  for (std::thread& worker : workers_) worker.join();
}

int ThreadPool::ThreadsNow() const { return share_ == nullptr ? threads() : std::min(threads(), share_->Threads()); }

void ThreadPool::Run(int64_t items, const void* context, Function function) {
  const int threads = ThreadsNow();
  if (items <= 1 || threads == 1 || items >= kMaxItems) {
    for (int64_t item = 0; item < items; ++item) function(context, item, 0);
    return;
  }
  const uint32_t count = static_cast<uint32_t>(items);
  Job& job = jobs_[++epoch_ & 1];
  job.function.store(function, std::memory_order_relaxed);
  job.context.store(context, std::memory_order_relaxed);
  job.items.store(count, std::memory_order_relaxed);
  job.threads.store(threads, std::memory_order_relaxed);
  job.done.store(0, std::memory_order_relaxed);
  ticket_.store(uint64_t{epoch_} << 32);  // seq_cst, as is sleepers_: either we see the sleeper or it sees the job
  if (sleepers_.load() > 0) {
    absl::MutexLock lock(&mutex_);
    for (int worker = 1; worker < threads; ++worker) wake_[worker].Signal();
  }
  Work(epoch_, 0);
  AwaitDone(job, count);
}

void ThreadPool::Work(uint32_t epoch, int worker) {
  Job& job = jobs_[epoch & 1];
  while (true) {
    uint64_t ticket = ticket_.load();
    const uint32_t item = static_cast<uint32_t>(ticket);
    if (ticket >> 32 != epoch || item >= job.items.load(std::memory_order_relaxed)) return;
    if (!ticket_.compare_exchange_weak(ticket, ticket + 1)) continue;
    // Claimed, so the caller cannot have left this job: its fields are stable.
    const uint32_t items = job.items.load(std::memory_order_relaxed);
    job.function.load(std::memory_order_relaxed)(job.context.load(std::memory_order_relaxed), item, worker);
    if (job.done.fetch_add(1) + 1 == items && worker != 0 && caller_waits_.load()) {
      absl::MutexLock lock(&mutex_);
      wake_caller_.Signal();
    }
  }
}

void ThreadPool::AwaitDone(Job& job, uint32_t items) {
  for (int spin = 0; spin < kSpins; ++spin) {
    if (job.done.load() == items) return;
    Pause();
  }
  absl::MutexLock lock(&mutex_);
  caller_waits_.store(true);
  while (job.done.load() != items) wake_caller_.Wait(&mutex_);
  caller_waits_.store(false);
}

void ThreadPool::WorkerLoop(int worker) {
  uint32_t seen = 0;
  while (true) {
    bool found = false;
    for (int spin = 0; spin < kSpins && !found; ++spin) {
      found = TakesPartAfter(seen, worker);
      if (!found) Pause();
    }
    if (!found && !SleepUntilAfter(seen, worker)) return;
    seen = static_cast<uint32_t>(ticket_.load() >> 32);
    Work(seen, worker);
  }
}

// Whether a later loop is there that has room for this worker.
bool ThreadPool::TakesPartAfter(uint32_t epoch, int worker) const {
  const uint32_t now = static_cast<uint32_t>(ticket_.load() >> 32);
  return now != epoch && worker < jobs_[now & 1].threads.load(std::memory_order_relaxed);
}

bool ThreadPool::SleepUntilAfter(uint32_t epoch, int worker) {
  absl::MutexLock lock(&mutex_);
  sleepers_.fetch_add(1);
  while (!stop_ && !TakesPartAfter(epoch, worker)) wake_[worker].Wait(&mutex_);
  sleepers_.fetch_sub(1);
  return !stop_;
}

}  // namespace swiftcache::engine::backend::cpu
