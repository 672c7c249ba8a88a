// SPDX-License-Identifier: Apache-2.0
#include "engine/backend/cuda/step_fence.h"

#include <atomic>
#include <deque>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "engine/backend/cuda/event_fence.h"

namespace swiftcache::engine::backend::cuda {

// What is due, in the order in which it was said.
class StepFences::Due {
 public:
  void Add(std::function<void()> act) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    acts_.push_back(std::move(act));
    ++added_;
  }
  int64_t added() const ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    return added_;
  }
  bool IsEmpty() const ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    return acts_.empty();
  }
  // The first `count` that were added are due. When it returns they are done, whoever did them.
  void Do(int64_t count) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    for (; done_ < count; ++done_) {
      acts_.front()();
      acts_.pop_front();
    }
  }
  // They are not done: whoever wanted them has heard of the failure, and what they write to may be gone.
  void Drop(int64_t count) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    for (; done_ < count; ++done_) acts_.pop_front();
  }

 private:
  mutable absl::Mutex mutex_;
  std::deque<std::function<void()>> acts_ ABSL_GUARDED_BY(mutex_);
  int64_t added_ ABSL_GUARDED_BY(mutex_) = 0, done_ ABSL_GUARDED_BY(mutex_) = 0;
};

class StepFences::State final : public HostFence {
 public:
  State(std::shared_ptr<const EventFence> event, std::shared_ptr<Due> due,
        std::function<void(const absl::Status&)> failed)
      : event_(std::move(event)), due_(std::move(due)), due_count_(due_->added()), failed_(std::move(failed)) {}
  // Of what could not be given to the stream.
  State(std::shared_ptr<Due> due, std::function<void(const absl::Status&)> failed, const absl::Status& why)
      : due_(std::move(due)), failed_(std::move(failed)), has_failed_(true) {
    due_->Drop(due_->added());
    if (failed_) failed_(why);
  }

  const EventFence* event() const override { return event_.get(); }
  bool Passed() const override ABSL_LOCKS_EXCLUDED(mutex_) {
    if (passed_) return true;
    // Asked without the lock, which Wait holds while the GPU works.
    if (event_ == nullptr || !event_->Passed()) return false;
    absl::MutexLock lock(&mutex_);
    if (!passed_ && !has_failed_) Pass();
    return passed_;
  }
  void Wait() const override ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    if (passed_ || has_failed_) return;
    const absl::Status status = event_->Synchronize();
    if (status.ok()) return Pass();
    has_failed_ = true;
    due_->Drop(due_count_);
    if (failed_) failed_(status);
  }

 private:
  void Pass() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    due_->Do(due_count_);
    passed_ = true;
  }

  const std::shared_ptr<const EventFence> event_;
  const std::shared_ptr<Due> due_;
  const int64_t due_count_ = 0;
  const std::function<void(const absl::Status&)> failed_;
  mutable absl::Mutex mutex_;
  mutable bool has_failed_ ABSL_GUARDED_BY(mutex_) = false;
  mutable std::atomic<bool> passed_ = false;  // set under the mutex
};

StepFences::StepFences(Driver& driver, Stream stream)
    : driver_(driver), stream_(stream), due_(std::make_shared<Due>()) {}

StepFences::~StepFences() = default;

void StepFences::WhenDone(std::function<void()> act) { due_->Add(std::move(act)); }

Fence StepFences::Record(std::function<void(const absl::Status&)> failed) {
  absl::StatusOr<std::shared_ptr<EventFence>> event = EventFence::Create(driver_);
  absl::Status status = event.status();
  if (event.ok()) status = (*event)->Record(stream_);
  if (!status.ok()) return Failed(status, std::move(failed));
  if (!failed && due_->IsEmpty()) return Fence(*std::move(event));
  return Fence(std::make_shared<State>(*std::move(event), due_, std::move(failed)));
}

// The stream may still write what the caller gives up now.
Fence StepFences::Failed(const absl::Status& why, std::function<void(const absl::Status&)> failed) {
  driver_.Finish(stream_);
  return Fence(std::make_shared<State>(due_, std::move(failed), why));
}

}  // namespace swiftcache::engine::backend::cuda
