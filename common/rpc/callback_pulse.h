// SPDX-License-Identifier: Apache-2.0
// Keeps one of gRPC's callback threads awake, so that calls to an idle process start at once. gRPC 1.51 has two or more
// of these threads for all callback servers and clients of a process. A thread without an event for a second sleeps for
// 100 ms at a time, even if an event arrives (completion_queue_cc.cc): one in ten calls to an idle process waited up to
// 100 ms. A thread that had an event within the last second does not sleep, so one call every 900 ms is enough. The
// calls are made on a channel that leads nowhere, where each fails at once: the cheapest event that there is.
//
//   CallbackPulse pulse;  // until it is destroyed
#pragma once

#include <grpcpp/generic/generic_stub.h>

#include <memory>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "common/sync/timed_mutex.h"

namespace swiftcache {

/// Thread-safety: none. Ownership: its calls are over when its destructor returns. Errors: none.
class CallbackPulse {
 public:
  CallbackPulse();
  ~CallbackPulse();

  /// To be called by who makes callback calls, before its first channel. gRPC ends the callback threads with the last
  /// channel or server that uses them. If that is the channel of a call which outlives all else, it ends on such a
  /// thread, which then waits for itself, and the process aborts (completion_queue_cc.cc: Unref). From here on the
  /// threads run until the process ends. Thread-safety: safe.
  static void KeepThreads();

 private:
  struct Call;
  void Run();
  void Beat() ABSL_LOCKS_EXCLUDED(mutex_);

  grpc::GenericStub stub_;
  TimedNotification stop_;
  TimedMutex mutex_;
  bool beating_ ABSL_GUARDED_BY(mutex_) = false;
  std::unique_ptr<Call> call_;  // the last one; the thread's
  std::thread thread_;          // last: it uses everything above
};

}  // namespace swiftcache
