// SPDX-License-Identifier: Apache-2.0
#include "engine/coordinator/memory_exchange.h"

#include <algorithm>
#include <utility>

#include "common/log/log.h"

namespace swiftcache::engine::coordinator {

MemoryExchange::MemoryExchange(const Clock& clock, Metrics& metrics)
    : clock_(clock),
      seconds_(metrics.Histogram("swiftcache_remap_seconds",
                                 "From the end of a lease to other memory in its place, with --remap_on_return",
                                 {1e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10})) {}

void MemoryExchange::Start(transport::Transport& transport, std::function<void(Then)> post) {
  transport_ = &transport;
  post_ = std::move(post);
  if (transport_->exchanges()) thread_ = std::thread([this] { Run(); });
}

void MemoryExchange::Stop() {
  if (!thread_.joinable()) return;
  {
    TimedMutexLock lock(&mutex_);
    stopping_ = true;
  }
  thread_.join();
}

void MemoryExchange::Prepare(const Part& part, std::function<void(const absl::Status&)> then) {
  if (!transport_->exchanges()) return then(absl::OkStatus());
  Add(clock_.Now(), {.part = part, .prepared = std::move(then)});
}

void MemoryExchange::Forgo(const Part& part) {
  std::function<void(const absl::Status&)> prepared;
  {
    TimedMutexLock lock(&mutex_);
    const auto job = std::find_if(jobs_.begin(), jobs_.end(),
                                  [&](const auto& job) { return job.second.prepared && job.second.part == part; });
    if (job == jobs_.end()) return;
    prepared = std::move(jobs_.extract(job).mapped().prepared);
  }
  post_([prepared = std::move(prepared)] { prepared(absl::CancelledError("it is not lent any more")); });
}

void MemoryExchange::Return(kv::LeaseId id, const Part& part, Then withheld, Then then) {
  if (!transport_->exchanges()) return then();
  const absl::Time ended = clock_.Now();
  returning_[id] = {
      .then = {[this, ended] { seconds_.Observe(absl::ToDoubleSeconds(clock_.Now() - ended)); }, std::move(then)}};
  Add(ended, {.part = part, .returned = id, .withheld = std::move(withheld)});
}

void MemoryExchange::WhenBack(kv::LeaseId id, Then then) {
  const auto returning = returning_.find(id);
  if (returning == returning_.end()) return then();
  returning->second.then.push_back(std::move(then));
}

bool MemoryExchange::any_returning() const {
  return std::any_of(returning_.begin(), returning_.end(), [](const auto& lease) { return !lease.second.withheld; });
}

void MemoryExchange::Returned(kv::LeaseId id) {
  const auto returned = returning_.extract(id);
  for (const Then& then : returned.mapped().then) then();
}

void MemoryExchange::Add(absl::Time due, Job job) {
  TimedMutexLock lock(&mutex_);
  jobs_.emplace(due, std::move(job));
}

void MemoryExchange::Run() {
  for (;;) {
    Job job;
    {
      TimedMutexLock lock(&mutex_);
      while (!HasWork()) {
        const absl::Time due = jobs_.empty() ? absl::InfiniteFuture() : jobs_.begin()->first;
        mutex_.AwaitWithTimeout(absl::Condition(this, &MemoryExchange::HasWork), due - clock_.Now());
      }
      if (stopping_) return;
      job = TakeDue();
    }
    Do(std::move(job));
  }
}

// A return before all loans that are being made ready: a need waits for it.
MemoryExchange::Job MemoryExchange::TakeDue() {
  const auto end = jobs_.upper_bound(clock_.Now());
  const auto back = std::find_if(jobs_.begin(), end, [](const auto& job) { return !job.second.prepared; });
  return std::move(jobs_.extract(back == end ? jobs_.begin() : back).mapped());
}

void MemoryExchange::Do(Job job) {
  const auto [offset_bytes, bytes] = job.part;
  if (job.prepared) {
    const absl::Status ready = transport_->PrepareToLend(offset_bytes, bytes);
    return post_([prepared = std::move(job.prepared), ready] { prepared(ready); });
  }
  const absl::Status exchanged = transport_->Exchange(offset_bytes, bytes);
  const kv::LeaseId id = job.returned;
  if (exchanged.ok()) return post_([this, id] { Returned(id); });
  Then withheld = std::exchange(job.withheld, nullptr);
  Add(clock_.Now() + kAgain, std::move(job));
  if (!withheld) return;
  post_([this, id, withheld = std::move(withheld)] {
    returning_[id].withheld = true;
    withheld();
  });
  LOG(ERROR) << "--remap_on_return: there is no other memory for the " << bytes << " bytes of lease " << id
             << ", which stay out of use until there is: " << exchanged.message()
             << "; free memory, or end who borrowed them";
}

}  // namespace swiftcache::engine::coordinator
