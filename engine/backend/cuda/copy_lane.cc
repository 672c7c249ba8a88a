// SPDX-License-Identifier: Apache-2.0
#include "engine/backend/cuda/copy_lane.h"

#include "common/base/status_macros.h"

namespace swiftcache::engine::backend::cuda {

// The event is made first and the host's wait comes before the lock: afterwards nothing blocks, and a copy that was
// given without its event is finished before the error is told.
absl::StatusOr<std::shared_ptr<const EventFence>> CopyLane::Begin(const Copies& copies, const Fence& after) {
  ASSIGN_OR_RETURN(const std::shared_ptr<EventFence> copied, EventFence::Create(driver_));
  if (!IsOrderable(driver_, after)) after.Wait();
  absl::MutexLock lock(&mutex_);
  const absl::Status given = Give(copies, after, *copied);
  if (given.ok()) return std::shared_ptr<const EventFence>(copied);
  Empty();
  return given;
}

absl::Status CopyLane::Give(const Copies& copies, const Fence& after, EventFence& copied) {
  if (!stream_) {
    ASSIGN_OR_RETURN(const Stream stream, driver_.CreateStream());
    stream_ = stream;
  }
  RETURN_IF_ERROR(OrderBehind(driver_, *stream_, after));
  if (!copies.runs.empty()) RETURN_IF_ERROR(driver_.Copy(*stream_, copies.runs));
  for (const DeviceCopy2D& grid : copies.grids) RETURN_IF_ERROR(driver_.Copy2D(*stream_, grid));
  return copied.Record(*stream_);
}

// An event that cannot be waited for may be of a copy that goes on.
absl::Status CopyLane::Finish(const EventFence& copied) {
  const absl::Status finished = copied.Synchronize();
  if (!finished.ok()) WaitForAll();
  return finished;
}

absl::Status CopyLane::Run(const Copies& copies, const Fence& after) {
  ASSIGN_OR_RETURN(const std::shared_ptr<const EventFence> copied, Begin(copies, after));
  return Finish(*copied);
}

void CopyLane::WaitForAll() {
  absl::MutexLock lock(&mutex_);
  Empty();
}

void CopyLane::Empty() {
  if (stream_) driver_.DestroyStream(*stream_);
  stream_.reset();
}

}  // namespace swiftcache::engine::backend::cuda
