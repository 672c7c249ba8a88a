// SPDX-License-Identifier: Apache-2.0
#include "gateway/rpc/generate_stream.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/rpc/status.h"
#include "gateway/rpc/caught.h"
#include "gateway/rpc/convert.h"

namespace swiftcache::gateway::rpc {
namespace {

constexpr absl::Duration kRetryDelay = absl::Seconds(1);

// A message of one token takes some 200 bytes, and 10 on the wire.
int64_t MemoryOf(const v1::GenerateResponse& response) { return static_cast<int64_t>(response.SpaceUsedLong()); }

}  // namespace

absl::Status WithRetryInfo(absl::Status status) {
  if (!absl::IsResourceExhausted(status) || RetryDelayOf(status).has_value()) return status;
  return WithRetryDelay(std::move(status), kRetryDelay);
}

std::shared_ptr<GenerateStream> GenerateStream::Create(const Options& options) {
  auto stream = std::make_shared<GenerateStream>(options);
  stream->self_ = stream;
  return stream;
}

void GenerateStream::Begin(relay::Relay& relay, absl::StatusOr<relay::GenerateRequest> request) {
  if (!request.ok()) return OnDone(request.status());
  if (IsOver()) return relay.Refused(*std::move(request), relay::ClientGone());
  const auto generate = [&] { return relay.Generate(*std::move(request), shared_from_this()); };
  absl::StatusOr<std::shared_ptr<relay::GenerateCall>> call = Caught(generate);
  if (call.ok()) return Attach(*std::move(call));
  GiveUp(call.status());  // where it threw, events may have come
  Advance();
}

// A long prompt waits for a thread: its client may have left.
bool GenerateStream::IsOver() {
  absl::MutexLock lock(&mutex_);
  return end_.has_value();
}

// Events that came before are sent now that the request's id is known.
void GenerateStream::Attach(std::shared_ptr<relay::GenerateCall> call) {
  std::optional<absl::Status> over;
  {
    absl::MutexLock lock(&mutex_);
    if (end_.has_value() && pending_.empty()) over = end_;
    if (!over) call_ = call;
  }
  if (over) call->Cancel(*std::move(over));
  Advance();
}

void GenerateStream::OnEvent(relay::GenerateEvent event) {
  v1::GenerateResponse response = rpc::ToProto(event);
  const int64_t bytes = MemoryOf(response);
  bool too_slow = false;
  {
    absl::MutexLock lock(&mutex_);
    if (end_.has_value()) return;  // given up
    pending_.push_back(std::move(response));
    unread_bytes_ += bytes;
    too_slow = unread_bytes_ > options_.max_unread_bytes;
  }
  if (too_slow) {
    CutReader(absl::ResourceExhaustedError(
        absl::StrCat("the client left more than ", options_.max_unread_bytes,
                     " bytes of the answer unread, as it lies in memory; read faster or ask for less")));
  }
  Advance();
}

// It gets no status; the request's log line and metrics do.
void GenerateStream::OnStalled() {
  CutReader(absl::ResourceExhaustedError(
      absl::StrCat("the client has read nothing for ", absl::FormatDuration(options_.stall_timeout), "; read faster")));
}

void GenerateStream::CutReader(absl::Status why) {
  bool before = false;
  {
    absl::MutexLock lock(&mutex_);
    before = std::exchange(cut_, true);
  }
  if (!before && options_.on_slow_reader_cut) options_.on_slow_reader_cut();
  GiveUp(std::move(why));
}

void GenerateStream::OnDone(absl::Status status) {
  {
    absl::MutexLock lock(&mutex_);
    if (!end_.has_value()) end_ = WithRetryInfo(std::move(status));
  }
  Advance();
}

// Drops what is unread and ends the request; the first reason stays.
void GenerateStream::GiveUp(absl::Status status) {
  Drop(WithRetryInfo(status));
  std::shared_ptr<relay::GenerateCall> call;
  {
    absl::MutexLock lock(&mutex_);
    unread_bytes_ = 0;
    call = call_;
  }
  if (call != nullptr) call->Cancel(std::move(status));
}

void GenerateStream::OnNext(v1::GenerateResponse& response) {
  unread_bytes_ -= MemoryOf(response);
  response.set_request_id(call_->request_id());
}

void GenerateStream::OnDone() {
  {
    absl::MutexLock lock(&mutex_);
    call_.reset();
  }
  self_.reset();  // may delete this
}

}  // namespace swiftcache::gateway::rpc
