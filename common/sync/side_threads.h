// SPDX-License-Identifier: Apache-2.0
// Threads for calls that take long, as tokenising a megabyte does, so that a server's own few threads stay free. gRPC
// has as few as two callback threads for all calls of a process: those on which engines' tokens come, too. So what is
// too much for these threads is refused, and never done by who brought it.
//
//   RETURN_IF_ERROR(threads.Run(request->SpaceUsedLong(), [=] { reactor->Finish(Tokens(*request)); }));
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "common/base/byte_budget.h"

namespace swiftcache {

/// Thread-safety: safe. Ownership: owns its threads and the work that waits; the destructor runs it all.
class SideThreads {
 public:
  struct Options {
    int threads = 2;
    // Of messages whose work is not done, what is under way included: some thousands that are just long, or a few of
    // the longest.
    int64_t max_waiting_bytes = int64_t{256} << 20;
  };
  /// Whether a message of so many bytes may take some milliseconds.
  static bool IsLong(size_t bytes) { return bytes > (32 << 10); }
  explicit SideThreads(const Options& options);
  ~SideThreads();

  /// On one of the threads, in order. `bytes`: of memory that the work holds until it is done. The work must not throw,
  /// which would end the process: only who brings it can tell its caller. Errors: RESOURCE_EXHAUSTED: with it more than
  /// max_waiting_bytes would wait; the work is not done.
  absl::Status Run(size_t bytes, std::function<void()> work);

 private:
  struct Pool;
  ByteBudget waiting_;
  const std::unique_ptr<Pool> pool_;  // last: its work uses the rest
};

}  // namespace swiftcache
