// SPDX-License-Identifier: Apache-2.0
// A stream for copies that belong to somebody: whoever hands memory out for a copy must know when the copy is over, also
// where the driver fails half-way.
//
//   CopyLane lane(driver);
//   ASSIGN_OR_RETURN(const std::shared_ptr<const EventFence> copied, lane.Begin({.runs = runs}, after));
//   RETURN_IF_ERROR(lane.Finish(*copied));       // either way nothing of it is under way any more
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "engine/backend/cuda/driver.h"
#include "engine/backend/cuda/event_fence.h"
#include "engine/backend/fence.h"

namespace swiftcache::engine::backend::cuda {

/// Copies in the order in which they are begun. The lock is held while the stream is given work, which returns at once,
/// so that one asker's copies and their event are adjacent; and while a broken stream is emptied.
/// Thread-safety: safe. Ownership: owns the stream; borrows the driver, which outlives it and its fences. Errors: the
/// driver's, and OrderBehind's; after an error nothing of that copy is under way, nor will be.
class CopyLane {
 public:
  struct Copies {
    std::vector<DeviceCopy> runs;
    std::vector<DeviceCopy2D> grids;
  };

  explicit CopyLane(Driver& driver) : driver_(driver) {}
  CopyLane(const CopyLane&) = delete;
  CopyLane& operator=(const CopyLane&) = delete;
  ~CopyLane() { WaitForAll(); }

  /// Copies once `after` has passed; what it returns passes when all is copied.
  absl::StatusOr<std::shared_ptr<const EventFence>> Begin(const Copies& copies, const Fence& after)
      ABSL_LOCKS_EXCLUDED(mutex_);
  /// Waits for what Begin returned.
  absl::Status Finish(const EventFence& copied) ABSL_LOCKS_EXCLUDED(mutex_);
  /// Both.
  absl::Status Run(const Copies& copies, const Fence& after) ABSL_LOCKS_EXCLUDED(mutex_);
  /// Waits for all that was begun, whatever the driver says of its events; the lane goes on with another stream.
  void WaitForAll() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  absl::Status Give(const Copies& copies, const Fence& after, EventFence& copied) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Empty() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Driver& driver_;
  absl::Mutex mutex_;
  std::optional<Stream> stream_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace swiftcache::engine::backend::cuda
