// SPDX-License-Identifier: Apache-2.0
#include "common/http/response.h"

#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/http/wire_format.h"

namespace swiftcache::http {
namespace {

HttpHeaders WithType(std::string content_type, HttpHeaders headers, bool keep_alive) {
  headers.insert(headers.begin(), {"Content-Type", std::move(content_type)});
  if (!keep_alive) headers.emplace_back("Connection", "close");
  return headers;
}

}  // namespace

Response::~Response() { Fail(); }

void Response::Fail() {
  Phase phase;
  {
    absl::MutexLock lock(&mutex_);
    phase = phase_;
  }
  if (phase == Phase::kNew) Send(500, "application/json", FormatError(500, "the server dropped this request"), {}, {});
  if (phase == Phase::kStreaming) outlet_->Cut();
}

bool Response::Advance(Phase from, Phase to) {
  std::function<void()> dropped;  // destroyed after the lock: it may own the last reference to anything
  absl::MutexLock lock(&mutex_);
  if (phase_ != from) return false;
  phase_ = to;
  if (to == Phase::kComplete) dropped = std::exchange(on_disconnect_, nullptr);
  return true;
}

void Response::Send(int status, std::string content_type, std::string body, HttpHeaders headers,
                    std::shared_ptr<void> held) {
  if (!Advance(Phase::kNew, Phase::kComplete)) return;
  headers = WithType(std::move(content_type), std::move(headers), form_.keep_alive);
  headers.emplace_back("Content-Length", absl::StrCat(body.size()));
  std::string bytes = FormatHead(status, headers);
  if (!form_.head_only) bytes += body;
  outlet_->Queue(std::move(bytes), {.status = status, .last = true, .held = std::move(held)});
}

void Response::StartStream(int status, std::string content_type, HttpHeaders headers) {
  if (!Advance(Phase::kNew, Phase::kStreaming)) return;
  headers = WithType(std::move(content_type), std::move(headers), form_.keep_alive);
  if (form_.chunked) headers.emplace_back("Transfer-Encoding", "chunked");
  outlet_->Queue(FormatHead(status, headers), {.status = status});
}

bool Response::Write(std::string chunk) {
  {
    absl::MutexLock lock(&mutex_);
    if (gone_ || phase_ != Phase::kStreaming) return false;
  }
  if (chunk.empty() || form_.head_only) return true;  // an empty chunk would end the body
  if (!outlet_->HasRoom(static_cast<int64_t>(chunk.size()))) {
    {
      absl::MutexLock lock(&mutex_);
      gone_ = true;  // the connection hears of it later, and may have room again until then
    }
    outlet_->CutSlowReader();
    return false;
  }
  return outlet_->Queue(form_.chunked ? FormatChunk(chunk) : std::move(chunk), {});
}

void Response::Finish() {
  if (Advance(Phase::kStreaming, Phase::kComplete)) {
    outlet_->Queue(std::string(form_.chunked && !form_.head_only ? kLastChunk : std::string_view()), {.last = true});
  } else {
    Fail();
  }
}

void Response::OnDisconnect(std::function<void()> callback) {
  {
    absl::MutexLock lock(&mutex_);
    if (phase_ == Phase::kComplete) return;
    if (!gone_) {
      on_disconnect_ = std::move(callback);
      return;
    }
  }
  callback();
}

void Response::ClientGone() {
  std::function<void()> callback;
  {
    absl::MutexLock lock(&mutex_);
    gone_ = true;
    callback = std::exchange(on_disconnect_, nullptr);
  }
  if (callback) callback();
}

}  // namespace swiftcache::http
