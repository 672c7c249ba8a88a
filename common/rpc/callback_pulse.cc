// SPDX-License-Identifier: Apache-2.0
#include "common/rpc/callback_pulse.h"

#include <grpcpp/client_context.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/support/byte_buffer.h>

#include "absl/time/time.h"

namespace swiftcache {
namespace {

constexpr absl::Duration kBetweenBeats = absl::Milliseconds(900);

}  // namespace

struct CallbackPulse::Call {
  grpc::ClientContext context;
  grpc::Slice empty;
  grpc::ByteBuffer request{&empty, 1}, response;
};

CallbackPulse::CallbackPulse()
    : stub_(grpc::CreateChannel(/*target=*/"", /*creds=*/nullptr)),  // a "lame" channel: create_channel.h
      thread_([this] { Run(); }) {}

CallbackPulse::~CallbackPulse() {
  stop_.Notify();
  thread_.join();
  absl::MutexLock lock(&mutex_);
  mutex_.Await(absl::Condition(
      +[](bool* beating) { return !*beating; }, &beating_));
}

void CallbackPulse::Run() {
  while (!stop_.WaitForNotificationWithTimeout(kBetweenBeats)) Beat();
}

// The call fails before it begins, and its end is told on the thread. Nobody waits for it.
void CallbackPulse::Beat() {
  {
    absl::MutexLock lock(&mutex_);
    if (beating_) return;
    beating_ = true;
  }
  call_ = std::make_unique<Call>();
  stub_.UnaryCall(&call_->context, "/nowhere", grpc::StubOptions(), &call_->request, &call_->response,
                  [this](grpc::Status) {
                    absl::MutexLock lock(&mutex_);
                    beating_ = false;
                  });
}

}  // namespace swiftcache
