// SPDX-License-Identifier: Apache-2.0
// Fences of the computing stream, and what the host does when they have passed: results that kernels left in pinned
// memory go where the caller wants them.
//
//   StepFences fences(driver, stream);
//   fences.WhenDone([&] { out = *pinned; });
//   ASSIGN_OR_RETURN(Fence fence, fences.Record());
//   fence.Wait();                                   // out is set
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/backend/cuda/driver.h"
#include "engine/backend/fence.h"

namespace swiftcache::engine::backend::cuda {

/// Thread-safety: one thread calls; its fences are anybody's. Ownership: borrows the driver, which outlives the fences
/// too. Errors: as Fence's: that of a stream that failed does not pass, and says so to `failed`. Other
/// streams can wait for any of them (OrderBehind), and do not wait for what is due.
class StepFences {
 public:
  StepFences(Driver& driver, Stream stream);
  ~StepFences();
  /// What is due when all that was given to the stream before is done; once, by whoever first sees a fence recorded
  /// after it pass, without a lock. It may say what is due later, and waits for no fence. Not called where the stream
  /// failed.
  void WhenDone(std::function<void()> act);
  /// `failed`: hears, once, why the fence cannot pass.
  Fence Record(std::function<void(const absl::Status&)> failed = {});
  /// A fence that never passes, of what could not be given to the stream.
  Fence Failed(const absl::Status& why, std::function<void(const absl::Status&)> failed = {});

 private:
  class Due;
  class State;
  Driver& driver_;
  const Stream stream_;
  std::shared_ptr<Due> due_;
};

}  // namespace swiftcache::engine::backend::cuda
