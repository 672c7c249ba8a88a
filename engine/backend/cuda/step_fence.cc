// SPDX-License-Identifier: Apache-2.0
#include "engine/backend/cuda/step_fence.h"

#include <atomic>
#include <deque>
#include <utility>

#include "absl/base/call_once.h"
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
  // Whether all that were added are done.
  bool IsEmpty() const ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    return acts_.empty() && !doing_;
  }
  // The first `count` that were added are due. When it returns they are done, whoever did them: one after the other, without
  // the lock. What they held is given back by then.
  void Do(int64_t count) ABSL_LOCKS_EXCLUDED(mutex_) {
    while (std::function<void()> act = Take(count)) {
      act();
      act = nullptr;
      absl::MutexLock lock(&mutex_);
      doing_ = false;
    }
  }
  // They are not done: whoever wanted them has heard of the failure, and what they write to may be gone.
  void Drop(int64_t count) ABSL_LOCKS_EXCLUDED(mutex_) {
    while (Take(count)) {
      absl::MutexLock lock(&mutex_);
      doing_ = false;
    }
  }

 private:
  // The next one, which is then under way until `doing_` says otherwise; null where none of the first `count` is left.
  std::function<void()> Take(int64_t count) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(
        +[](bool* doing) { return !*doing; }, &doing_));
    if (taken_ >= count) return nullptr;
    std::function<void()> act = std::move(acts_.front());
    acts_.pop_front();
    ++taken_;
    doing_ = true;
    return act;
  }

  mutable absl::Mutex mutex_;
  std::deque<std::function<void()>> acts_ ABSL_GUARDED_BY(mutex_);
  int64_t added_ ABSL_GUARDED_BY(mutex_) = 0, taken_ ABSL_GUARDED_BY(mutex_) = 0;
  bool doing_ ABSL_GUARDED_BY(mutex_) = false;  // one of them, somebody
};

class StepFences::State final : public HostFence {
 public:
  State(std::shared_ptr<const EventFence> event, std::shared_ptr<Due> due,
        std::function<void(const absl::Status&)> failed)
      : event_(std::move(event)), due_(std::move(due)), due_count_(due_->added()), failed_(std::move(failed)) {}
  // Of what could not be given to the stream.
  State(std::shared_ptr<Due> due, std::function<void(const absl::Status&)> failed, const absl::Status& why)
      : due_(std::move(due)), failed_(std::move(failed)) {
    due_->Drop(due_->added());
    if (failed_) failed_(why);
  }

  const EventFence* event() const override { return event_.get(); }
  bool Passed() const override {
    if (passed_) return true;
    if (event_ == nullptr || !event_->Passed()) return false;
    Pass();
    return true;
  }
  void Wait() const override {
    if (passed_ || event_ == nullptr) return;
    const absl::Status status = event_->Synchronize();
    if (status.ok()) return Pass();
    absl::call_once(told_, [&] {
      due_->Drop(due_count_);
      if (failed_) failed_(status);
    });
  }

 private:
  void Pass() const {
    due_->Do(due_count_);
    passed_ = true;
  }

  const std::shared_ptr<const EventFence> event_;  // null: it never passes
  const std::shared_ptr<Due> due_;
  const int64_t due_count_ = 0;
  const std::function<void(const absl::Status&)> failed_;
  mutable absl::once_flag told_;
  mutable std::atomic<bool> passed_ = false;
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
