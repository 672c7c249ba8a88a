// SPDX-License-Identifier: Apache-2.0
#include "common/rpc/callback_pulse.h"

#include <grpcpp/client_context.h>
#include <grpcpp/support/byte_buffer.h>

#include "absl/time/time.h"

namespace swiftcache {
namespace {

constexpr absl::Duration kBetweenBeats = absl::Milliseconds(700);

}  // namespace

struct CallbackPulse::Call {
  grpc::ClientContext context;
  grpc::Slice empty;
  grpc::ByteBuffer request{&empty, 1}, response;
};

CallbackPulse::CallbackPulse(const std::shared_ptr<grpc::Channel>& channel)
    : stub_(channel), thread_([this] { Run(); }) {}

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

// A call that is cancelled before it begins: it ends on the thread, and the server never sees it. Nobody waits for it.
void CallbackPulse::Beat() {
  {
    absl::MutexLock lock(&mutex_);
    if (beating_) return;
    beating_ = true;
  }
  call_ = std::make_unique<Call>();
  call_->context.TryCancel();
  stub_.UnaryCall(&call_->context, "/grpc.health.v1.Health/Check", grpc::StubOptions(), &call_->request,
                  &call_->response, [this](grpc::Status) {
                    absl::MutexLock lock(&mutex_);
                    beating_ = false;
                  });
}

}  // namespace swiftcache
