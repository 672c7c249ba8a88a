// SPDX-License-Identifier: Apache-2.0
// GenerateMany over real gRPC, with an engine whose tokens the test makes up.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "common/log/log.h"
#include "common/rpc/channel.h"
#include "common/rpc/server.h"
#include "common/rpc/status.h"
#include "engine/rpc/engine_service.h"
#include "tests/engine/rpc/cards.h"
#include "tests/fakes/connected_channel.h"
#include "tests/fakes/fake_engine.h"

namespace swiftcache::engine::rpc {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Output = v1::GenerateManyResponse::Output;

constexpr char kTrace[] = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

void Tell(FakeEngine::Live* live, int32_t index, std::vector<int32_t> ids) {
  live->sink->OnTokens({.index = index, .token_ids = std::move(ids)});
}

v1::GenerateManyRequest BeginOf(int64_t id, const std::string& request_id) {
  v1::GenerateManyRequest command;
  command.set_generation_id(id);
  command.mutable_begin()->mutable_request()->set_request_id(request_id);
  command.mutable_begin()->mutable_request()->add_token_ids(1);
  return command;
}

v1::GenerateManyRequest CancelOf(int64_t id) {
  v1::GenerateManyRequest command;
  command.set_generation_id(id);
  command.mutable_cancel();
  return command;
}

// A client of one stream.
class Stream {
 public:
  explicit Stream(const std::string& address)
      : stub_(v1::EngineService::NewStub(fakes::ConnectedChannel(address))), stream_(stub_->GenerateMany(&context_)) {}

  Stream& Send(const v1::GenerateManyRequest& command) {
    EXPECT_TRUE(stream_->Write(command));
    return *this;
  }
  bool TrySend(const v1::GenerateManyRequest& command) { return stream_->Write(command); }
  Stream& Begin(int64_t id, const std::string& request_id) { return Send(BeginOf(id, request_id)); }
  void CloseHalf() { stream_->WritesDone(); }
  void TryCancel() { context_.TryCancel(); }

  /// The next message; empty where the stream has ended.
  std::vector<Output> Read() {
    v1::GenerateManyResponse response;
    if (!stream_->Read(&response)) return {};
    return {response.outputs().begin(), response.outputs().end()};
  }
  /// The status of the generation that ends next; its tokens, and those of others, are dropped.
  absl::Status ReadEnd(int64_t id) {
    for (std::vector<Output> outputs = Read(); !outputs.empty(); outputs = Read()) {
      for (const Output& output : outputs) {
        if (output.generation_id() != id || !output.has_end()) continue;
        const absl::Status status(static_cast<absl::StatusCode>(output.end().code()), output.end().message());
        return output.end().has_retry_delay()
                   ? WithRetryDelay(status, absl::Seconds(output.end().retry_delay().seconds()))
                   : status;
      }
    }
    return absl::DataLossError("the stream ended before");
  }
  /// Reads what is left.
  absl::Status Finish() {
    while (!Read().empty()) {
    }
    return FromGrpc(stream_->Finish());
  }

 private:
  const std::unique_ptr<v1::EngineService::Stub> stub_;
  grpc::ClientContext context_;
  const std::unique_ptr<grpc::ClientReaderWriter<v1::GenerateManyRequest, v1::GenerateManyResponse>> stream_;
};

class GenerateManyTest : public ::testing::Test {
 protected:
  GenerateManyTest() : door_(WireLimits{}, *SerializeModelCard(SomeCard()), "i1", [] { return uint64_t{7}; }) {
    server_ = *RpcServer::Create({.listen = "127.0.0.1:0"}, {&door_});
    door_.Open(engine_);
  }
  ~GenerateManyTest() override { server_->Stop(absl::Now()); }

  Stream NewStream() { return Stream(server_->address()); }

  FakeEngine engine_;
  EngineDoor door_;
  std::unique_ptr<RpcServer> server_;
};

TEST_F(GenerateManyTest, AStepIsOneMessageForAllGenerations) {
  Stream stream = NewStream();
  v1::GenerateManyRequest first = BeginOf(1, "r1");
  first.mutable_begin()->set_traceparent(kTrace);
  stream.Send(first).Begin(2, "r2");
  FakeEngine::Live* one = engine_.WaitForRequest("r1");
  FakeEngine::Live* two = engine_.WaitForRequest("r2");
  ASSERT_TRUE(one != nullptr && two != nullptr);
  EXPECT_EQ(one->request.traceparent, kTrace);
  EXPECT_EQ(two->request.traceparent, "");
  Tell(one, 0, {3});
  Tell(two, 0, {4});
  Tell(one, 0, {5});
  one->sink->OnStepEnd();
  two->sink->OnStepEnd();
  const std::vector<Output> outputs = stream.Read();
  ASSERT_EQ(outputs.size(), 2u);
  EXPECT_EQ(outputs[0].generation_id(), 1);
  EXPECT_THAT(outputs[0].tokens().token_ids(), ElementsAre(3, 5));
  EXPECT_FALSE(outputs[0].has_end());
  EXPECT_EQ(outputs[1].generation_id(), 2);
  EXPECT_THAT(outputs[1].tokens().token_ids(), ElementsAre(4));
}

TEST_F(GenerateManyTest, AnEndComesBehindTheTokensAndTheStreamGoesOn) {
  Stream stream = NewStream();
  stream.Begin(1, "r1");
  FakeEngine::Live* live = engine_.WaitForRequest("r1");
  ASSERT_NE(live, nullptr);
  Tell(live, 0, {3});
  engine_.End("r1", absl::InternalError("the device fell over"));
  const std::vector<Output> outputs = stream.Read();
  ASSERT_EQ(outputs.size(), 2u);
  EXPECT_THAT(outputs[0].tokens().token_ids(), ElementsAre(3));
  EXPECT_EQ(outputs[1].end().code(), static_cast<int>(absl::StatusCode::kInternal));
  EXPECT_EQ(outputs[1].end().message(), "the device fell over");
  stream.Begin(1, "r2");  // the id is free again
  ASSERT_NE(engine_.WaitForRequest("r2"), nullptr);
  engine_.End("r2", absl::OkStatus());
  EXPECT_EQ(stream.ReadEnd(1), absl::OkStatus());
}

TEST_F(GenerateManyTest, ASlowReaderGetsEveryTokenInOrder) {
  Stream stream = NewStream();
  stream.Begin(1, "r1").Begin(2, "r2");
  std::vector<FakeEngine::Live*> live = {engine_.WaitForRequest("r1"), engine_.WaitForRequest("r2")};
  ASSERT_TRUE(live[0] != nullptr && live[1] != nullptr);
  constexpr int kTokens = 300'000;  // several messages full
  for (int i = 0; i < kTokens; ++i) {
    Tell(live[i % 2], 0, {i});
    if (i % 2 == 1) live[1]->sink->OnStepEnd();
  }
  engine_.End("r1", absl::OkStatus());
  engine_.End("r2", absl::OkStatus());
  std::map<int64_t, std::vector<int32_t>> got;
  int messages = 0;
  for (int ends = 0; ends < 2; ++messages) {
    const std::vector<Output> outputs = stream.Read();
    ASSERT_FALSE(outputs.empty());
    for (const Output& output : outputs) {
      auto& ids = got[output.generation_id()];
      ids.insert(ids.end(), output.tokens().token_ids().begin(), output.tokens().token_ids().end());
      ends += output.has_end() ? 1 : 0;
    }
  }
  for (int32_t of = 0; of < 2; ++of) {
    std::vector<int32_t> wanted;
    for (int i = of; i < kTokens; i += 2) wanted.push_back(i);
    EXPECT_EQ(got[of + 1], wanted) << "generation " << of + 1;
  }
  EXPECT_LT(messages, kTokens / 2);
  EXPECT_GE(messages, 4) << "of bounded size";
}

TEST_F(GenerateManyTest, EachIndexHasItsOwnTokens) {
  Stream stream = NewStream();
  v1::GenerateManyRequest command = BeginOf(1, "r1");
  command.mutable_begin()->mutable_request()->mutable_sampling()->set_n(2);
  stream.Send(command);
  FakeEngine::Live* live = engine_.WaitForRequest("r1");
  ASSERT_NE(live, nullptr);
  Tell(live, 1, {3});
  Tell(live, 0, {4});
  Tell(live, 1, {5});
  live->sink->OnStepEnd();
  const std::vector<Output> outputs = stream.Read();
  ASSERT_EQ(outputs.size(), 2u);
  EXPECT_EQ(outputs[0].tokens().index(), 1);
  EXPECT_THAT(outputs[0].tokens().token_ids(), ElementsAre(3, 5));
  EXPECT_EQ(outputs[1].tokens().index(), 0);
  EXPECT_THAT(outputs[1].tokens().token_ids(), ElementsAre(4));
}

TEST_F(GenerateManyTest, CancelEndsOneGenerationAndNoOther) {
  Stream stream = NewStream();
  stream.Begin(1, "r1").Begin(2, "r2").Send(CancelOf(3)).Send(CancelOf(1));
  EXPECT_EQ(stream.ReadEnd(1).code(), absl::StatusCode::kCancelled);
  EXPECT_NE(engine_.WaitForRequest("r2"), nullptr);
  EXPECT_EQ(engine_.live(), 1u);
  engine_.End("r2", absl::OkStatus());
  EXPECT_EQ(stream.ReadEnd(2), absl::OkStatus());
  stream.Send(CancelOf(2)).Begin(4, "r4");
  EXPECT_NE(engine_.WaitForRequest("r4"), nullptr) << "the cancel of what has ended does nothing";
}

TEST_F(GenerateManyTest, ACancelThatComesTooLateLeavesTheNextRequestOfItsIdAlone) {
  engine_.before_cancel = [this] {
    engine_.End("r1", absl::OkStatus());
    EXPECT_EQ(engine_.SubmitOf("r1"), absl::OkStatus());
  };
  Stream stream = NewStream();
  stream.Begin(1, "r1");
  ASSERT_NE(engine_.WaitForRequest("r1"), nullptr);
  stream.Send(CancelOf(1));
  EXPECT_EQ(stream.ReadEnd(1), absl::OkStatus());
  EXPECT_TRUE(engine_.WaitForCancel("r1"));
  EXPECT_EQ(engine_.live(), 1u);
}

TEST_F(GenerateManyTest, ACancelOfAnIndexEndsNothingElse) {
  Stream stream = NewStream();
  stream.Begin(1, "r1");
  FakeEngine::Live* live = engine_.WaitForRequest("r1");
  ASSERT_NE(live, nullptr);
  v1::GenerateManyRequest cancel = CancelOf(1);
  cancel.mutable_cancel()->set_index(0);
  stream.Send(cancel);
  EXPECT_TRUE(engine_.WaitForCancel("r1[0]"));
  cancel.set_generation_id(2);  // unknown
  stream.Send(cancel);
  EXPECT_EQ(engine_.live(), 1u);
  Tell(live, 0, {3});
  engine_.End("r1", absl::OkStatus());
  EXPECT_EQ(stream.ReadEnd(1), absl::OkStatus());
}

TEST_F(GenerateManyTest, ATimeoutEndsAGeneration) {
  Stream stream = NewStream();
  for (const int64_t nanos : {int64_t{0}, int64_t{30'000'000}, int64_t{-1'000'000'000}}) {
    const std::string id = absl::StrCat("r", nanos);
    v1::GenerateManyRequest command = BeginOf(1, id);
    command.mutable_begin()->mutable_timeout()->set_nanos(static_cast<int32_t>(nanos));
    EXPECT_EQ(stream.Send(command).ReadEnd(1).code(), absl::StatusCode::kDeadlineExceeded);
    EXPECT_TRUE(engine_.WaitForCancel(id));
    EXPECT_EQ(engine_.live(), 0u);
  }
}

TEST_F(GenerateManyTest, ATimeoutThatIsNotReachedIsForgotten) {
  Stream stream = NewStream();
  for (const int64_t seconds : {int64_t{3600}, int64_t{315'576'000'000}}) {
    v1::GenerateManyRequest command = BeginOf(1, "r1");
    command.mutable_begin()->mutable_timeout()->set_seconds(seconds);
    stream.Send(command);
    ASSERT_NE(engine_.WaitForRequest("r1"), nullptr);
    engine_.End("r1", absl::OkStatus());
    EXPECT_EQ(stream.ReadEnd(1), absl::OkStatus());
  }
}

TEST_F(GenerateManyTest, RefusalsAreThoseOfGenerateAndEndNothingElse) {
  Stream stream = NewStream();
  stream.Begin(1, "r1");
  ASSERT_NE(engine_.WaitForRequest("r1"), nullptr);
  v1::GenerateManyRequest bad = BeginOf(2, "r2");
  bad.mutable_begin()->mutable_request()->set_cache_salt(std::string(1025, 's'));
  const absl::Status invalid = stream.Send(bad).ReadEnd(2);
  EXPECT_EQ(invalid.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(invalid.message()), HasSubstr("cache_salt has 1025 bytes"));
  EXPECT_THAT(engine_.refusals(), ElementsAre(absl::StatusCode::kInvalidArgument));
  EXPECT_EQ(stream.Begin(2, "r1").ReadEnd(2).code(), absl::StatusCode::kAlreadyExists);
  engine_.refuse_with(absl::ResourceExhaustedError("queue full"));
  const absl::Status full = stream.Begin(2, "r2").ReadEnd(2);
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(RetryDelayOf(full), absl::Seconds(1));
  EXPECT_EQ(engine_.live(), 1u);
}

TEST_F(GenerateManyTest, NoRoomIsMadeForWhatTheEngineMayRefuse) {
  engine_.refuse_with(absl::InvalidArgumentError("n is too large"));
  Stream stream = NewStream();
  for (const int32_t n : {std::numeric_limits<int32_t>::max(), -1}) {
    v1::GenerateManyRequest command = BeginOf(1, "r1");
    command.mutable_begin()->mutable_request()->mutable_sampling()->set_n(n);
    EXPECT_EQ(stream.Send(command).ReadEnd(1).code(), absl::StatusCode::kInvalidArgument);
  }
}

TEST_F(GenerateManyTest, UnavailableUntilTheEngineIsThere) {
  EngineDoor door(WireLimits{}, *SerializeModelCard(SomeCard()), "i1", [] { return uint64_t{7}; });
  const auto server = *RpcServer::Create({.listen = "127.0.0.1:0"}, {&door});
  Stream stream(server->address());
  EXPECT_EQ(stream.Begin(1, "r1").ReadEnd(1).code(), absl::StatusCode::kUnavailable);
  door.Open(engine_);
  stream.Begin(2, "r2");
  EXPECT_NE(engine_.WaitForRequest("r2"), nullptr) << "the same stream serves";
  stream.TryCancel();
  EXPECT_TRUE(engine_.WaitForCancel("r2"));
  server->Stop(absl::Now());
}

TEST_F(GenerateManyTest, AClientThatCancelsTheStreamCancelsAllOfIt) {
  Stream stream = NewStream();
  stream.Begin(1, "r1").Begin(2, "r2");
  ASSERT_NE(engine_.WaitForRequest("r2"), nullptr);
  stream.TryCancel();
  EXPECT_TRUE(engine_.WaitForCancel("r1"));
  EXPECT_TRUE(engine_.WaitForCancel("r2"));
  EXPECT_EQ(stream.Finish().code(), absl::StatusCode::kCancelled);
}

TEST_F(GenerateManyTest, AClientWhoseConnectionIsGoneCancelsAllOfIt) {
  {
    Stream stream = NewStream();
    stream.Begin(1, "r1").Begin(2, "r2");
    ASSERT_NE(engine_.WaitForRequest("r2"), nullptr);
  }  // context and channel are gone without a word
  EXPECT_TRUE(engine_.WaitForCancel("r1"));
  EXPECT_TRUE(engine_.WaitForCancel("r2"));
}

TEST_F(GenerateManyTest, ClientsDoNotMeet) {
  Stream one = NewStream(), two = NewStream();
  one.Begin(1, "r1");
  two.Begin(1, "r2");
  FakeEngine::Live* live = engine_.WaitForRequest("r2");
  ASSERT_NE(live, nullptr);
  ASSERT_NE(engine_.WaitForRequest("r1"), nullptr);
  one.TryCancel();
  EXPECT_TRUE(engine_.WaitForCancel("r1"));
  Tell(live, 0, {3});
  engine_.End("r2", absl::OkStatus());
  const std::vector<Output> outputs = two.Read();
  ASSERT_EQ(outputs.size(), 2u);
  EXPECT_THAT(outputs[0].tokens().token_ids(), ElementsAre(3));
}

TEST_F(GenerateManyTest, AnIdThatIsUnderWayEndsTheStreamWithAClearError) {
  Stream stream = NewStream();
  stream.Begin(5, "r1");
  ASSERT_NE(engine_.WaitForRequest("r1"), nullptr);
  const absl::Status status = stream.Begin(5, "r2").Finish();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("generation_id 5"));
  EXPECT_TRUE(engine_.WaitForCancel("r1"));
  EXPECT_EQ(engine_.live(), 0u);
}

TEST_F(GenerateManyTest, AMessageWithoutACommandEndsTheStreamWithAClearError) {
  Stream stream = NewStream();
  stream.Begin(5, "r1");
  ASSERT_NE(engine_.WaitForRequest("r1"), nullptr);
  const absl::Status status = stream.Send(v1::GenerateManyRequest()).Finish();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("begin, cancel"));
  EXPECT_TRUE(engine_.WaitForCancel("r1"));
}

// The client reads only where its writes have come to a halt, since the engine does not read any more: first what was
// written before that, mostly an end in a message.
TEST_F(GenerateManyTest, WhoReadsNoEndsMayNotBeginForEver) {
  const LogLevel level = CurrentLogLevel();
  SetLogLevel(LogLevel::kError);
  engine_.refuse_with(absl::InternalError("no"));
  Stream stream = NewStream();
  std::atomic<int> sent = 0;
  std::atomic<bool> ended = false;
  std::thread writer([&] {
    const v1::GenerateManyRequest command = BeginOf(1, "r1");
    while (stream.TrySend(command)) ++sent;
    ended = true;
  });
  for (bool over = false; !over && !ended;) {
    const int before = sent;
    absl::SleepFor(absl::Milliseconds(100));
    for (int i = 0; !over && sent == before && i < 20'000; ++i) over = stream.Read().empty();
  }
  const absl::Status status = stream.Finish();
  writer.join();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("unread"));
  EXPECT_GE(sent, GenerateManyStream::kMaxUnreadEnds);
  SetLogLevel(level);
}

TEST_F(GenerateManyTest, AClientThatClosesItsHalfGetsWhatItBegan) {
  Stream stream = NewStream();
  stream.Begin(1, "r1").CloseHalf();
  FakeEngine::Live* live = engine_.WaitForRequest("r1");
  ASSERT_NE(live, nullptr);
  Tell(live, 0, {3});
  engine_.End("r1", absl::OkStatus());
  EXPECT_EQ(stream.ReadEnd(1), absl::OkStatus());
  EXPECT_EQ(stream.Finish(), absl::OkStatus());
  Stream idle = NewStream();
  idle.CloseHalf();
  EXPECT_EQ(idle.Finish(), absl::OkStatus());
}

TEST_F(GenerateManyTest, AnEngineThatEndsClosesIdleStreamsAndWaitsForNone) {
  Stream idle = NewStream(), busy = NewStream();
  EXPECT_EQ(idle.Begin(1, "").Send(CancelOf(1)).ReadEnd(1).code(), absl::StatusCode::kCancelled);
  busy.Begin(1, "r1");
  ASSERT_NE(engine_.WaitForRequest("r1"), nullptr);
  door_.CloseStreams();
  EXPECT_EQ(idle.Finish().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(NewStream().Finish().code(), absl::StatusCode::kUnavailable) << "new ones too";
  engine_.End("r1", absl::OkStatus());
  EXPECT_EQ(busy.ReadEnd(1), absl::OkStatus());
  EXPECT_THAT(busy.Read(), IsEmpty());
  const absl::Time begin = absl::Now();
  server_->Stop(begin + absl::Minutes(1));
  EXPECT_LT(absl::Now() - begin, absl::Seconds(30));
}

}  // namespace
}  // namespace swiftcache::engine::rpc
