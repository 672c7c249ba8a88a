// SPDX-License-Identifier: Apache-2.0
#include "engine/backend/cuda/event_fence.h"

#include "common/base/status_macros.h"

namespace swiftcache::engine::backend::cuda {
namespace {

// The fence's event, where it is one of this driver.
const EventFence* EventOf(const Driver& driver, const Fence& fence) {
  const auto* event = dynamic_cast<const EventFence*>(fence.state());
  return event != nullptr && event->IsOf(driver) ? event : nullptr;
}

absl::Status NeverGiven() { return absl::AbortedError("the work before this event was never given to the device"); }

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
bool EventFence::Passed() const {
  if (passed_) return true;
  if (!recorded_) return false;
  const absl::StatusOr<bool> passed = driver_.Passed(event_);
  if (!passed.ok() || !*passed) return false;
  passed_ = true;
  return true;
}

absl::Status EventFence::Synchronize() const {
  if (passed_) return absl::OkStatus();
  if (!recorded_) return NeverGiven();
  RETURN_IF_ERROR(driver_.Synchronize(event_));
  passed_ = true;
  return absl::OkStatus();
}

absl::Status EventFence::HoldBack(Stream stream) const {
  return recorded_ ? driver_.Wait(stream, event_) : NeverGiven();
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
