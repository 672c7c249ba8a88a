// SPDX-License-Identifier: Apache-2.0
#include "gateway/rpc/engine_stream.h"

#include <grpcpp/alarm.h>

#include <algorithm>
#include <functional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/clock.h"
#include "common/base/traceparent.h"
#include "common/base/wall_time.h"
#include "common/rpc/channel.h"
#include "common/rpc/proto_duration.h"
#include "common/rpc/status.h"
#include "gateway/rpc/convert.h"
#include "gateway/rpc/observed_call.h"

namespace swiftcache::gateway::rpc {
namespace {

// On a thread of gRPC's and not from within this call: an alarm that is destroyed is over, and says so.
void RunSoon(std::function<void()> what) {
  grpc::Alarm().Set(absl::ToChronoTime(absl::Now()), [what = std::move(what)](bool) { what(); });
}

v1::GenerateManyRequest ToBegin(const fleet::EngineRequest& request) {
  v1::GenerateManyRequest command;
  v1::GenerateManyRequest::Begin& begin = *command.mutable_begin();
  *begin.mutable_request() = rpc::ToProto(request);
  begin.set_traceparent(ParseTraceparent(request.traceparent));
  if (request.deadline != absl::InfiniteFuture()) {
    const absl::Duration timeout = std::max(absl::ZeroDuration(), request.deadline - RealClock().Now());
    *begin.mutable_timeout() = DurationToProto(timeout);
  }
  return command;
}

absl::Status ToPlain(const v1::GenerateManyResponse::End& end) {
  const absl::Status status(static_cast<absl::StatusCode>(end.code()), end.message());
  if (status.ok() || !end.has_retry_delay()) return status;
  return WithRetryDelay(status, DurationFromProto(end.retry_delay()));
}

// A connection that breaks is UNAVAILABLE. Whatever else ends a stream says nothing of the requests on it.
absl::Status EndOfCalls(const grpc::Status& status) {
  if (status.ok()) return absl::UnavailableError("the engine has ended the stream");
  const absl::Status plain = FromGrpc(status);
  if (absl::IsUnavailable(plain)) return plain;
  return absl::UnavailableError(
      absl::StrCat("the stream ended with ", absl::StatusCodeToString(plain.code()), ": ", plain.message()));
}

}  // namespace

struct EngineStream::Generation : std::enable_shared_from_this<Generation> {
  Generation(int64_t id, std::shared_ptr<fleet::EngineObserver> observer) : id(id), call(std::move(observer)) {}
  const int64_t id;
  ObservedCall call;
  grpc::Alarm deadline;
};

class EngineStream::Handle final : public fleet::EngineCall {
 public:
  Handle(std::weak_ptr<EngineStream> stream, std::shared_ptr<Generation> generation)
      : stream_(std::move(stream)), generation_(std::move(generation)) {}
  // A stream that is gone has ended its calls.
  void Cancel() override {
    if (const auto stream = stream_.lock()) stream->End(*generation_, absl::CancelledError("cancelled"));
  }
  void CancelIndex(int32_t index) override {
    if (const auto stream = stream_.lock()) stream->EndIndex(*generation_, index);
  }

 private:
  const std::weak_ptr<EngineStream> stream_;
  const std::shared_ptr<Generation> generation_;
};

EngineStream::EngineStream(v1::EngineService::Stub& stub, std::string model_name, std::string card_hash)
    : model_name_(std::move(model_name)), card_hash_(std::move(card_hash)) {
  stub.async()->GenerateMany(&context_, this);
}

void EngineStream::Start() {
  self_ = shared_from_this();
  AddHold();
  StartRead(&response_);
  StartCall();
}

std::unique_ptr<fleet::EngineCall> EngineStream::Begin(const fleet::EngineRequest& request,
                                                       std::shared_ptr<fleet::EngineObserver> observer) {
  v1::GenerateManyRequest command = ToBegin(request);
  command.mutable_begin()->mutable_request()->set_model_name(model_name_);
  command.mutable_begin()->mutable_request()->set_model_card_hash(card_hash_);
  std::shared_ptr<Generation> generation;
  {
    absl::MutexLock lock(&mutex_);
    if (over_) return nullptr;
    generation = std::make_shared<Generation>(next_id_++, std::move(observer));
    command.set_generation_id(generation->id);
    calls_[generation->id] = generation;
    pending_.push_back(std::move(command));
  }
  if (request.deadline != absl::InfiniteFuture()) SetAlarm(generation, request.deadline);
  Write();
  return std::make_unique<Handle>(weak_from_this(), std::move(generation));
}

void EngineStream::SetAlarm(const std::shared_ptr<Generation>& generation, absl::Time deadline) {
  // Called, with false, when the generation is destroyed as well.
  generation->deadline.Set(absl::ToChronoTime(ToWallTime(deadline)),
                           [weak_stream = weak_from_this(), weak = std::weak_ptr(generation)](bool passed) {
                             const auto stream = weak_stream.lock();
                             const auto late = weak.lock();
                             if (!passed || stream == nullptr || late == nullptr) return;
                             stream->End(*late, absl::DeadlineExceededError("the deadline passed"));
                           });
}

void EngineStream::End(Generation& generation, absl::Status why) {
  if (!Take(generation)) return;
  if (generation.call.End(std::move(why))) RunSoon([kept = generation.shared_from_this()] { kept->call.TellEnd(); });
  Write();
  CloseIfIdle();
}

bool EngineStream::Take(const Generation& generation) {
  absl::MutexLock lock(&mutex_);
  if (calls_.erase(generation.id) == 0) return false;
  const auto unsent = std::find_if(pending_.begin(), pending_.end(), [&](const auto& command) {
    return command.generation_id() == generation.id && command.has_begin();
  });
  if (unsent != pending_.end()) {
    pending_.erase(unsent);
    return true;
  }
  v1::GenerateManyRequest& command = pending_.emplace_back();
  command.set_generation_id(generation.id);
  command.mutable_cancel();
  return true;
}

void EngineStream::EndIndex(const Generation& generation, int32_t index) {
  {
    absl::MutexLock lock(&mutex_);
    if (!calls_.contains(generation.id)) return;
    v1::GenerateManyRequest& command = pending_.emplace_back();
    command.set_generation_id(generation.id);
    command.mutable_cancel()->set_index(index);
  }
  Write();
}

void EngineStream::Write() {
  {
    absl::MutexLock lock(&mutex_);
    if (writing_ || over_ || pending_.empty()) return;
    writing_ = true;
    current_ = std::move(pending_.front());
    pending_.pop_front();
  }
  StartWrite(&current_);  // outside the lock; `writing_` lets only one thread come here
}

// A write that failed is followed by the reader's end.
void EngineStream::OnWriteDone(bool) {
  bool over = false;
  {
    absl::MutexLock lock(&mutex_);
    writing_ = false;
    over = over_;
  }
  if (over) return RemoveHold();
  Write();
}

void EngineStream::OnReadDone(bool ok) {
  if (!ok) {
    bool writing = false;
    {
      absl::MutexLock lock(&mutex_);
      over_ = true;
      writing = writing_;
    }
    context_.TryCancel();  // the call goes on where it is a message that could not be read
    if (!writing) RemoveHold();
    return;
  }
  Find(response_);
  for (int i = 0; i < response_.outputs_size(); ++i) {
    const v1::GenerateManyResponse::Output& output = response_.outputs(i);
    const std::shared_ptr<Generation> generation = std::move(found_[i]);
    if (generation == nullptr) continue;  // cancelled here
    if (output.has_tokens()) generation->call.OnEvent(rpc::ToPlain(output.tokens()));
    if (output.has_end() && generation->call.End(ToPlain(output.end()))) generation->call.TellEnd();
  }
  CloseIfIdle();
  StartRead(&response_);
}

// Takes those that have ended.
void EngineStream::Find(const v1::GenerateManyResponse& response) {
  found_.clear();
  absl::MutexLock lock(&mutex_);
  for (const v1::GenerateManyResponse::Output& output : response.outputs()) {
    const auto it = calls_.find(output.generation_id());
    found_.push_back(it == calls_.end() ? nullptr : it->second);
    if (it != calls_.end() && output.has_end()) calls_.erase(it);
  }
}

void EngineStream::CloseWhenIdle() {
  {
    absl::MutexLock lock(&mutex_);
    closing_ = true;
  }
  CloseIfIdle();
}

void EngineStream::CloseIfIdle() {
  {
    absl::MutexLock lock(&mutex_);
    if (!closing_ || over_ || !calls_.empty()) return;
  }
  context_.TryCancel();
}

void EngineStream::OnDone(const grpc::Status& status) {
  const std::shared_ptr<EngineStream> self = std::move(self_);
  absl::flat_hash_map<int64_t, std::shared_ptr<Generation>> calls;
  {
    absl::MutexLock lock(&mutex_);
    calls.swap(calls_);
  }
  const absl::Status why = EndOfCalls(status);
  for (const auto& [id, generation] : calls) {
    if (generation->call.End(why)) generation->call.TellEnd();
  }
}

}  // namespace swiftcache::gateway::rpc
