// SPDX-License-Identifier: Apache-2.0
#include "common/rpc/callback_pulse.h"

#include <grpcpp/client_context.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/support/byte_buffer.h>

#include <functional>
#include <mutex>
#include <utility>

#include "absl/time/time.h"

namespace swiftcache {
namespace {

constexpr absl::Duration kBetweenBeats = absl::Milliseconds(900);

// It leads nowhere: create_channel.h.
std::shared_ptr<grpc::Channel> LameChannel() { return grpc::CreateChannel(/*target=*/"", /*creds=*/nullptr); }

}  // namespace

struct CallbackPulse::Call {
  grpc::ClientContext context;
  grpc::Slice empty;
  grpc::ByteBuffer request{&empty, 1}, response;

  // The call fails before it begins, and its end is told on a callback thread.
  void Start(grpc::GenericStub& stub, std::function<void(grpc::Status)> done) {
    stub.UnaryCall(&context, "/nowhere", grpc::StubOptions(), &request, &response, std::move(done));
  }
};

// A channel uses the threads from its first callback call on. This one and its call are never destroyed.
void CallbackPulse::KeepThreads() {
  static auto* const stub = new grpc::GenericStub(LameChannel());
  static auto* const call = new Call;
  static std::once_flag once;
  std::call_once(once, [] { call->Start(*stub, [](const grpc::Status&) {}); });
}

CallbackPulse::CallbackPulse() : stub_(LameChannel()), thread_([this] { Run(); }) {}

CallbackPulse::~CallbackPulse() {
  stop_.Notify();
  thread_.join();
  TimedMutexLock lock(&mutex_);
  mutex_.Await(absl::Condition(
      +[](bool* beating) { return !*beating; }, &beating_));
}

void CallbackPulse::Run() {
  while (!stop_.WaitWithTimeout(kBetweenBeats)) Beat();
}

// Nobody waits for the call.
void CallbackPulse::Beat() {
  {
    TimedMutexLock lock(&mutex_);
    if (beating_) return;
    beating_ = true;
  }
  call_ = std::make_unique<Call>();
  call_->Start(stub_, [this](const grpc::Status&) {
    TimedMutexLock lock(&mutex_);
    beating_ = false;
  });
}

}  // namespace swiftcache
