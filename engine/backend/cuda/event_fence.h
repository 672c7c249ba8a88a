// SPDX-License-Identifier: Apache-2.0
// A fence whose point lies in a stream: hosts may wait for it, and so may other streams of the same driver, without a
// host between them.
//
//   ASSIGN_OR_RETURN(std::shared_ptr<EventFence> event, EventFence::Create(driver));
//   RETURN_IF_ERROR(driver.Copy(stream, copies));
//   RETURN_IF_ERROR(event->Record(stream));
//   const Fence copied(event);
//   RETURN_IF_ERROR(OrderBehind(driver, other_stream, copied));
#pragma once

#include <atomic>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/backend/cuda/driver.h"
#include "engine/backend/fence.h"

namespace swiftcache::engine::backend::cuda {

class EventFence;

/// A fence of the host that passes behind an event. Streams wait for the event alone: what the host does once it has
/// passed is no matter to them.
class HostFence : public FenceState {
 public:
  /// Null where there is no work to wait for, because the driver refused it.
  virtual const EventFence* event() const = 0;
};

/// Made before the work whose end it marks, so that nothing is under way where there is no event to be had.
/// Thread-safety: safe once recorded. Ownership: owns the event; borrows the driver, which outlives every copy of the
/// fence. Errors: where the driver refuses to wait, Wait returns and the fence never passes, so that all who ask agree
/// on whether its work counts; Synchronize says why.
class EventFence final : public FenceState {
 public:
  static absl::StatusOr<std::shared_ptr<EventFence>> Create(Driver& driver);
  EventFence(Driver& driver, Event event) : driver_(driver), event_(event) {}
  EventFence(const EventFence&) = delete;
  EventFence& operator=(const EventFence&) = delete;
  ~EventFence() override { driver_.DestroyEvent(event_); }

  /// It passes when the stream has done what it was given so far. REQUIRES: called once, before others see the fence.
  absl::Status Record(Stream stream);

  bool Passed() const override;
  /// As Passed, which is false also where the driver answers with an error; of a device that is lost it always does.
  absl::StatusOr<bool> Ask() const;
  void Wait() const override { (void)Synchronize(); }
  /// Waits. ABORTED: it was never recorded, or a wait for it has failed before.
  absl::Status Synchronize() const;
  /// What `stream` is given from now on begins when the fence has passed. ABORTED: it is known that it never will.
  absl::Status HoldBack(Stream stream) const;
  bool IsOf(const Driver& driver) const { return &driver_ == &driver; }

 private:
  Driver& driver_;
  const Event event_;
  std::atomic<bool> recorded_ = false;
  enum class Fate { kOpen, kPassed, kFailed };  // once it is not open the driver is asked no more
  mutable std::atomic<Fate> fate_ = Fate::kOpen;
};

/// Whether streams of this driver can wait for the fence by themselves: it is an event of it, or behind one, or has
/// passed.
bool IsOrderable(const Driver& driver, const Fence& fence);

/// What `stream` is given from now on begins when `after` has passed. Waits here where the stream cannot. Errors: those
/// of the driver; ABORTED: the fence is of work that failed.
absl::Status OrderBehind(Driver& driver, Stream stream, const Fence& after);

}  // namespace swiftcache::engine::backend::cuda
