// SPDX-License-Identifier: Apache-2.0
#include "engine/backend/cuda/event_fence.h"

#include <utility>

#include "common/base/status_macros.h"

namespace swiftcache::engine::backend::cuda {
namespace {

// The fence's event, or the one that it is behind, where that is one of this driver.
const EventFence* EventOf(const Driver& driver, const Fence& fence) {
  const FenceState* state = fence.state();
  for (const FenceState* next = state; next != nullptr; next = next->stands_for()) state = next;
  const auto* host = dynamic_cast<const HostFence*>(state);
  const auto* event = host != nullptr ? host->event() : dynamic_cast<const EventFence*>(state);
  return event != nullptr && event->IsOf(driver) ? event : nullptr;
}

absl::Status NeverGiven() { return absl::AbortedError("the work before this event was never given to the device"); }
absl::Status WaitFailed() { return absl::AbortedError("a wait for this event has failed before"); }

}  // namespace

absl::StatusOr<std::shared_ptr<EventFence>> EventFence::Create(Driver& driver) {
  ASSIGN_OR_RETURN(const Event event, driver.CreateEvent());
  return std::make_shared<EventFence>(driver, event);
}

absl::Status EventFence::Record(Stream stream) {
  RETURN_IF_ERROR(driver_.Record(event_, stream));
  recorded_ = true;
  return absl::OkStatus();
}

// A driver says of an event that was never recorded that it has passed; the work behind this one never began.
absl::StatusOr<bool> EventFence::Ask() const {
  if (fate_ != Fate::kOpen || !recorded_) return fate_ == Fate::kPassed;
  ASSIGN_OR_RETURN(const bool passed, driver_.Passed(event_));
  Fate open = Fate::kOpen;
  if (passed) fate_.compare_exchange_strong(open, Fate::kPassed);
  return fate_ == Fate::kPassed;
}

bool EventFence::Passed() const { return Ask().value_or(false); }

// Of several who wait the first to return decides.
absl::Status EventFence::Synchronize() const {
  if (!recorded_) return NeverGiven();
  absl::Status waited = WaitFailed();
  if (fate_ == Fate::kOpen) {
    Fate open = Fate::kOpen;
    absl::Status now = driver_.Synchronize(event_);
    fate_.compare_exchange_strong(open, now.ok() ? Fate::kPassed : Fate::kFailed);
    if (!now.ok()) waited = std::move(now);
  }
  return fate_ == Fate::kPassed ? absl::OkStatus() : waited;
}

absl::Status EventFence::HoldBack(Stream stream) const {
  if (!recorded_) return NeverGiven();
  return fate_ == Fate::kFailed ? WaitFailed() : driver_.Wait(stream, event_);
}

bool IsOrderable(const Driver& driver, const Fence& fence) {
  return EventOf(driver, fence) != nullptr || fence.Passed();
}

absl::Status OrderBehind(Driver& driver, Stream stream, const Fence& after) {
  if (const EventFence* event = EventOf(driver, after)) return event->HoldBack(stream);
  after.Wait();
  if (!after.Passed()) return absl::AbortedError("the work that this waits for has failed");
  return absl::OkStatus();
}

}  // namespace swiftcache::engine::backend::cuda
