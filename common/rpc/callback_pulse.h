// SPDX-License-Identifier: Apache-2.0
// Keeps one of the threads awake that gRPC runs callbacks on. gRPC 1.51 has two or more of them for all callback
// servers and clients of a process, each of which, when it has had nothing to do for a second, sleeps for 100 ms
// whatever arrives (completion_queue_cc.cc): of the calls that reach an idle process one in ten waited for up to that
// long. A thread that had an event in the last second does not sleep, so one call every 400 ms is enough.
#pragma once

#include <grpcpp/channel.h>
#include <grpcpp/generic/generic_stub.h>

#include <memory>
#include <thread>

#include "absl/synchronization/notification.h"

namespace swiftcache {

/// Thread-safety: none. Ownership: shares the channel; a call of its own is over when its destructor returns.
/// Errors: none; a call that fails is as good.
class CallbackPulse {
 public:
  /// `channel`: one that answers at once, such as a server's InProcessChannel.
  explicit CallbackPulse(const std::shared_ptr<grpc::Channel>& channel);
  ~CallbackPulse();

 private:
  void Run();
  void Beat();

  grpc::GenericStub stub_;
  absl::Notification stop_;
  std::thread thread_;  // last: it uses everything above
};

}  // namespace swiftcache
