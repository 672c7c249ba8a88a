// SPDX-License-Identifier: Apache-2.0
#include "engine/rpc/generate_stream.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/rpc/status.h"
#include "engine/rpc/generate_request.h"

namespace swiftcache::engine::rpc {
namespace {

class StreamSink final : public exec::ResponseSink {
 public:
  explicit StreamSink(std::shared_ptr<GenerateStream> stream) : stream_(std::move(stream)) {}
  void OnTokens(exec::TokenEvent event) override { stream_->OnTokens(event); }
  void OnDone(absl::Status status) override { stream_->End(std::move(status)); }

 private:
  const std::shared_ptr<GenerateStream> stream_;
};

}  // namespace

void GenerateStream::Start(exec::Request request) {
  self_ = shared_from_this();
  request_id_ = request.request_id;
  number_ = request.number;
  {
    absl::MutexLock lock(&mutex_);
    submitted_ = true;  // before Submit: the sink may be called before it returns
  }
  absl::Status status = submitter_.Submit(std::move(request), std::make_unique<StreamSink>(self_));
  if (!status.ok()) End(std::move(status));
}

void GenerateStream::OnTokens(const exec::TokenEvent& event) {
  const int64_t most = submitter_.limits().max_unread_bytes;
  bool too_much = false;
  {
    absl::MutexLock lock(&mutex_);
    if (end_.has_value()) return;  // the reader is gone
    const auto same =
        std::find_if(pending_.begin(), pending_.end(), [&](const auto& p) { return p.index() == event.index; });
    if (same == pending_.end()) {
      pending_.push_back(ToProto(event));
    } else {
      Append(event, *same);
    }
    unread_bytes_ += MemoryOf(event);
    too_much = unread_bytes_ > most;
  }
  if (too_much) {
    GiveUp(WithRetryDelay(
        absl::ResourceExhaustedError(absl::StrCat(
            "the client left more than ", most,
            " bytes of the answer unread, as it lies in memory; read faster or ask for fewer log-probabilities")),
        kRetryDelay));
  }
  Advance();
}

void GenerateStream::End(absl::Status status) {
  {
    absl::MutexLock lock(&mutex_);
    submitted_ = false;
    if (!end_.has_value()) end_ = std::move(status);
  }
  Advance();
}

void GenerateStream::GiveUp(absl::Status why) {
  Drop(std::move(why));
  bool cancel = false;
  {
    absl::MutexLock lock(&mutex_);
    cancel = std::exchange(submitted_, false);
  }
  if (cancel) submitter_.Cancel(request_id_, number_);
}

void GenerateStream::OnNext(v1::EngineGenerateResponse& response) { unread_bytes_ -= MemoryOf(response); }

void GenerateStream::OnDone() { self_.reset(); }  // may delete this

}  // namespace swiftcache::engine::rpc
