// SPDX-License-Identifier: Apache-2.0
#include "common/rpc/callback_pulse.h"

#include <grpcpp/client_context.h>
#include <grpcpp/support/byte_buffer.h>

#include "absl/time/time.h"
#include "common/rpc/channel.h"

namespace swiftcache {
namespace {

constexpr absl::Duration kBetweenBeats = absl::Milliseconds(400);

}  // namespace

CallbackPulse::CallbackPulse(const std::shared_ptr<grpc::Channel>& channel)
    : stub_(channel), thread_([this] { Run(); }) {}

CallbackPulse::~CallbackPulse() {
  stop_.Notify();
  thread_.join();
}

void CallbackPulse::Run() {
  while (!stop_.WaitForNotificationWithTimeout(kBetweenBeats)) Beat();
}

// The health check with an empty request.
void CallbackPulse::Beat() {
  grpc::ClientContext context;
  SetTimeout(context, absl::Seconds(1));
  const grpc::Slice empty;
  const grpc::ByteBuffer request(&empty, 1);
  grpc::ByteBuffer response;
  absl::Notification done;
  stub_.UnaryCall(&context, "/grpc.health.v1.Health/Check", grpc::StubOptions(), &request, &response,
                  [&done](grpc::Status) { done.Notify(); });
  done.WaitForNotification();
}

}  // namespace swiftcache
