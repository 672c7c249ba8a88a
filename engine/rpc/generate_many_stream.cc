// SPDX-License-Identifier: Apache-2.0
#include "engine/rpc/generate_many_stream.h"

#include <grpcpp/alarm.h>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/base/wall_time.h"
#include "common/rpc/proto_duration.h"
#include "common/rpc/status.h"
#include "engine/rpc/generate_request.h"

namespace swiftcache::engine::rpc {
namespace {

// A full message takes some 30 to 100 KB on the wire: a client that reads at all takes one within the time after which
// it would be cut.
constexpr int64_t kFullBytes = 256 << 10;  // of memory
constexpr int64_t kOutputBytes = 256;      // likewise, beside what MemoryOf counts

int64_t BytesOf(const v1::GenerateManyResponse::Output& output) {
  return kOutputBytes + MemoryOf(output.tokens()) + static_cast<int64_t>(output.end().message().size());
}

}  // namespace

struct GenerateManyStream::Generation {
  // Where the tokens of an index were put last.
  struct Slot {
    int64_t message = 0;  // its number
    int output = 0;
  };

  const int64_t id;
  const std::string request_id;
  const exec::RequestNumber number;
  grpc::Alarm deadline;  // set before Submit, if there is one
  // Guarded by the stream's mutex.
  std::vector<Slot> slots;  // by index, of those that were told of: the engine has not looked at n yet
  bool accepted = false;    // by the engine
  bool timed_out = false;
};

class GenerateManyStream::Sink final : public exec::ResponseSink {
 public:
  Sink(std::shared_ptr<GenerateManyStream> stream, std::shared_ptr<Generation> generation)
      : stream_(std::move(stream)), generation_(std::move(generation)) {}
  void OnTokens(exec::TokenEvent event) override { stream_->OnTokens(*generation_, event); }
  void OnDone(absl::Status status) override { stream_->OnGenerationDone(*generation_, std::move(status)); }
  void OnStepEnd() override { stream_->Advance(); }

 private:
  const std::shared_ptr<GenerateManyStream> stream_;
  const std::shared_ptr<Generation> generation_;
};

void GenerateManyStream::Start() {
  self_ = shared_from_this();
  StartRead(&command_);
}

// Where the client is gone, and has not closed its half, OnReaderGone comes as well.
void GenerateManyStream::OnReadDone(bool ok) {
  if (!ok) return EndWhenIdle(absl::OkStatus());
  absl::Status status = command_.status.ok() ? Do(command_.message) : command_.status;
  command_ = {};  // it may be large, and the next one long in coming
  if (!status.ok()) {
    End(std::move(status));
    return Advance();
  }
  StartRead(&command_);
}

absl::Status GenerateManyStream::Do(const v1::GenerateManyRequest& command) {
  switch (command.command_case()) {
    case v1::GenerateManyRequest::kBegin:
      return Begin(command.generation_id(), command.begin());
    case v1::GenerateManyRequest::kCancel:
      Cancel(command.generation_id(),
             command.cancel().has_index() ? std::optional(command.cancel().index()) : std::nullopt);
      return absl::OkStatus();
    case v1::GenerateManyRequest::COMMAND_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError(absl::StrCat("the message of generation_id ", command.generation_id(),
                                                 " has no command, wanted one of begin, cancel: set one"));
}

absl::Status GenerateManyStream::Begin(int64_t id, const v1::GenerateManyRequest::Begin& begin) {
  RETURN_IF_ERROR(CheckBegin(id));
  absl::StatusOr<exec::Request> request = submitter_->Check(begin.request(), begin.traceparent());
  if (!request.ok()) {
    Refuse(id, request.status());
    return absl::OkStatus();
  }
  const absl::Duration timeout = begin.has_timeout() ? DurationFromProto(begin.timeout()) : absl::InfiniteDuration();
  auto generation =
      std::make_shared<Generation>(Generation{.id = id, .request_id = request->request_id, .number = request->number});
  Submit(generation, *std::move(request), timeout);
  return absl::OkStatus();
}

void GenerateManyStream::Refuse(int64_t id, const absl::Status& why) {
  {
    absl::MutexLock lock(&mutex_);
    if (!end_.has_value()) AddEnd(id, why);
  }
  Advance();
}

absl::Status GenerateManyStream::CheckBegin(int64_t id) {
  absl::MutexLock lock(&mutex_);
  if (generations_.contains(id)) {
    return absl::InvalidArgumentError(
        absl::StrCat("generation_id ", id, " is that of a generation under way on this stream: use a new one"));
  }
  if (unread_ends_ < kMaxUnreadEnds) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat("the ends of ", unread_ends_, " generations are unread, at most ",
                                                   kMaxUnreadEnds, " may be: read them before more are begun"));
}

void GenerateManyStream::Submit(const std::shared_ptr<Generation>& generation, exec::Request request,
                                absl::Duration timeout) {
  {
    absl::MutexLock lock(&mutex_);
    if (end_.has_value()) return;
    generations_[generation->id] = generation;
  }
  const std::shared_ptr<GenerateManyStream> self = shared_from_this();
  if (timeout != absl::InfiniteDuration()) {
    // Called, with false, when the generation is destroyed as well.
    generation->deadline.Set(absl::ToChronoTime(WallTimeNow() + timeout),
                             [weak_self = std::weak_ptr(self), weak = std::weak_ptr(generation)](bool passed) {
                               const auto stream = weak_self.lock();
                               const auto late = weak.lock();
                               if (passed && stream != nullptr && late != nullptr) stream->OnDeadline(late);
                             });
  }
  absl::Status status = submitter_->Submit(std::move(request), std::make_unique<Sink>(self, generation));
  if (!status.ok()) {
    OnGenerationDone(*generation, std::move(status));
    return Advance();
  }
  bool cancel = false;
  {
    absl::MutexLock lock(&mutex_);
    generation->accepted = true;
    cancel = end_.has_value() || generation->timed_out;
  }
  if (cancel) CancelInEngine(*generation);
}

void GenerateManyStream::Cancel(int64_t id, std::optional<int32_t> index) {
  std::shared_ptr<Generation> generation;
  {
    absl::MutexLock lock(&mutex_);
    const auto it = generations_.find(id);
    if (it == generations_.end()) return;
    generation = it->second;
  }
  CancelInEngine(*generation, index);
}

void GenerateManyStream::CancelInEngine(const Generation& generation, std::optional<int32_t> index) const {
  submitter_->Cancel(generation.request_id, generation.number, index);
}

void GenerateManyStream::OnDeadline(const std::shared_ptr<Generation>& generation) {
  {
    absl::MutexLock lock(&mutex_);
    const auto it = generations_.find(generation->id);
    if (it == generations_.end() || it->second != generation) return;
    generation->timed_out = true;
    if (!generation->accepted) return;
  }
  CancelInEngine(*generation);
}

void GenerateManyStream::OnTokens(Generation& generation, const exec::TokenEvent& event) {
  const int64_t most = submitter_->limits().max_unread_stream_bytes;
  {
    absl::MutexLock lock(&mutex_);
    if (end_.has_value()) return;  // nobody reads any more
    v1::GenerateManyResponse& message = LastMessage();
    if (event.index >= std::ssize(generation.slots)) generation.slots.resize(event.index + 1);
    Generation::Slot& slot = generation.slots[event.index];
    if (slot.message != last_message_) {
      slot = {.message = last_message_, .output = message.outputs_size()};
      v1::GenerateManyResponse::Output& output = *message.add_outputs();
      output.set_generation_id(generation.id);
      output.mutable_tokens()->set_index(event.index);
      Count(kOutputBytes);
    }
    Append(event, *message.mutable_outputs(slot.output)->mutable_tokens());
    Count(MemoryOf(event));
    if (unread_bytes_ <= most) return;
  }
  End(absl::ResourceExhaustedError(absl::StrCat(
      "the client left more than ", most, " bytes unread, as they lie in memory: read them before they are more")));
}

void GenerateManyStream::OnGenerationDone(Generation& generation, absl::Status status) {
  absl::MutexLock lock(&mutex_);
  if (generation.timed_out && absl::IsCancelled(status)) status = absl::DeadlineExceededError("the deadline passed");
  generations_.erase(generation.id);
  if (!end_.has_value()) AddEnd(generation.id, status);
  EndIfIdle();
}

v1::GenerateManyResponse& GenerateManyStream::LastMessage() {
  if (pending_.empty() || last_bytes_ >= kFullBytes) {
    pending_.emplace_back();
    ++last_message_;
    last_bytes_ = 0;
  }
  return pending_.back();
}

void GenerateManyStream::AddEnd(int64_t id, const absl::Status& status) {
  v1::GenerateManyResponse::Output& output = *LastMessage().add_outputs();
  output.set_generation_id(id);
  v1::GenerateManyResponse::End& end = *output.mutable_end();
  end.set_code(static_cast<int32_t>(status.code()));
  end.set_message(WireMessage(status));
  if (const std::optional<absl::Duration> delay = RetryDelayOf(status)) {
    *end.mutable_retry_delay() = DurationToProto(*delay);
  }
  Count(BytesOf(output));
  ++unread_ends_;
}

void GenerateManyStream::OnNext(v1::GenerateManyResponse& message) {
  for (const v1::GenerateManyResponse::Output& output : message.outputs()) {
    unread_bytes_ -= BytesOf(output);
    unread_ends_ -= output.has_end() ? 1 : 0;
  }
}

void GenerateManyStream::EndWhenIdle(absl::Status status) {
  {
    absl::MutexLock lock(&mutex_);
    if (!end_when_idle_.has_value()) end_when_idle_ = std::move(status);
    EndIfIdle();
  }
  Advance();
}

void GenerateManyStream::EndIfIdle() {
  if (end_when_idle_.has_value() && generations_.empty() && !end_.has_value()) end_ = end_when_idle_;
}

void GenerateManyStream::End(absl::Status why) {
  Drop(std::move(why));
  std::vector<std::shared_ptr<Generation>> accepted;
  {
    absl::MutexLock lock(&mutex_);
    for (const auto& [id, generation] : generations_) {
      if (generation->accepted) accepted.push_back(generation);
    }
  }
  for (const auto& generation : accepted) CancelInEngine(*generation);
}

void GenerateManyStream::OnDone() {
  on_end_(this);
  self_.reset();  // may delete this
}

}  // namespace swiftcache::engine::rpc
