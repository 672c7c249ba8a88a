// SPDX-License-Identifier: Apache-2.0
#include "common/rpc/stream_writer.h"

#include <grpcpp/client_context.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "common/rpc/channel.h"
#include "common/rpc/counted_service.h"
#include "common/rpc/server.h"
#include "swiftcache/v1/engine.grpc.pb.h"
#include "tests/fakes/connected_channel.h"

namespace swiftcache {
namespace {

constexpr size_t kLong = 256 << 10;  // more than gRPC sends to who does not read

class Stream final : public StreamWriter<v1::GetModelCardResponse>, public std::enable_shared_from_this<Stream> {
 public:
  void Start(grpc::CallbackServerContext& context, absl::Duration timeout) {
    self_ = shared_from_this();
    CutIfStalled(context, timeout, self_);
  }
  void Send(size_t bytes) {
    {
      absl::MutexLock lock(&mutex_);
      if (end_.has_value()) return;
      pending_.emplace_back().set_data(std::string(bytes, 'x'));
    }
    Advance();
  }
  void End() {
    {
      absl::MutexLock lock(&mutex_);
      if (!end_.has_value()) end_ = absl::OkStatus();
    }
    Advance();
  }
  void OnDone() override { self_.reset(); }

  absl::Notification stalled;

 private:
  void OnReaderGone() override { Drop(absl::CancelledError("gone")); }
  void OnStalled() override {
    stalled.Notify();  // once
    OnReaderGone();
  }
  std::shared_ptr<Stream> self_;
};

// Hands out the stream of its one call.
class Service final : public CountedService<v1::EngineService> {
 public:
  explicit Service(absl::Duration timeout) : timeout_(timeout) { Count("GetModelCard", &Service::GetModelCard); }
  grpc::ServerWriteReactor<v1::GetModelCardResponse>* GetModelCard(grpc::CallbackServerContext* context,
                                                                   const v1::GetModelCardRequest*) override {
    stream = std::make_shared<Stream>();
    stream->Start(*context, timeout_);
    called.Notify();
    return stream.get();
  }
  std::shared_ptr<Stream> stream;
  absl::Notification called;

 private:
  const absl::Duration timeout_;
};

// A call, and both of its ends.
class Call {
 public:
  explicit Call(absl::Duration timeout) : service_(timeout) {
    server_ = *RpcServer::Create({.listen = "127.0.0.1:0"}, {&service_});
    stub_ = v1::EngineService::NewStub(fakes::ConnectedChannel(server_->address()));
    SetTimeout(context_, absl::Minutes(2));
    reader_ = stub_->GetModelCard(&context_, {});
    service_.called.WaitForNotification();
  }
  ~Call() { server_->Stop(absl::InfinitePast()); }

  Stream& stream() { return *service_.stream; }
  bool Read() {
    v1::GetModelCardResponse response;
    const bool read = reader_->Read(&response);
    received_ += read ? 1 : 0;
    return read;
  }
  int received() const { return received_; }
  /// Reads what is left.
  grpc::StatusCode Finish() {
    while (Read()) {
    }
    return reader_->Finish().error_code();
  }
  /// Reads when the stream has been given up.
  grpc::StatusCode FinishLate() {
    EXPECT_TRUE(stream().stalled.WaitForNotificationWithTimeout(absl::Minutes(1)));
    return Finish();
  }

 private:
  Service service_;
  std::unique_ptr<RpcServer> server_;
  std::unique_ptr<v1::EngineService::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReader<v1::GetModelCardResponse>> reader_;
  int received_ = 0;
};

TEST(StreamWriterTest, WhoReadsNothingIsCutAndWhatWaitsIsDropped) {
  Call call(absl::Milliseconds(200));
  for (int i = 0; i < 10; ++i) call.stream().Send(kLong);
  EXPECT_EQ(call.FinishLate(), grpc::StatusCode::CANCELLED);
  EXPECT_LE(call.received(), 1) << "of which it had a part";
}

TEST(StreamWriterTest, WhoDoesNotReadTheRestOfWhatHasEndedIsCutToo) {
  Call call(absl::Milliseconds(200));
  call.stream().Send(kLong);
  call.stream().End();
  EXPECT_EQ(call.FinishLate(), grpc::StatusCode::CANCELLED);
}

TEST(StreamWriterTest, AWriteThatStallsLaterIsSeenToo) {
  Call call(absl::Seconds(2));
  call.stream().Send(1);
  ASSERT_TRUE(call.Read());
  absl::SleepFor(absl::Seconds(3));  // the alarm rests
  call.stream().Send(kLong);
  EXPECT_EQ(call.FinishLate(), grpc::StatusCode::CANCELLED);
}

// A busy machine needs more tries.
TEST(StreamWriterTest, WhoReadsSlowlyIsNotCutAndNeitherIsWhoHasNothingToRead) {
  bool uncut = false;
  for (int i = 0; i < 5 && !uncut; ++i) {
    Call call(absl::Seconds(1));
    for (int sent = 0; sent < 5; ++sent) call.stream().Send(kLong);
    bool read = true;
    for (int got = 0; got < 5; ++got) {
      absl::SleepFor(absl::Milliseconds(400));
      read = call.Read() && read;
    }
    absl::SleepFor(absl::Milliseconds(1500));
    call.stream().End();
    uncut = call.Finish() == grpc::StatusCode::OK && read && !call.stream().stalled.HasBeenNotified();
  }
  EXPECT_TRUE(uncut);
}

}  // namespace
}  // namespace swiftcache
