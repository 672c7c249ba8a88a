// SPDX-License-Identifier: Apache-2.0
// A server on a free port, with handlers that tests hold in their hands.
#pragma once

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "common/http/http_server.h"
#include "tests/fakes/raw_http_client.h"

namespace swiftcache {

/// Keeps the responders of requests that the test answers itself.
class HeldAnswers {
 public:
  HttpHandler Handler() {
    return [this](HttpRequest request, std::shared_ptr<HttpResponder> responder) {
      absl::MutexLock lock(&mutex_);
      requests_.push_back(std::move(request));
      responders_.push_back(std::move(responder));
    };
  }
  std::shared_ptr<HttpResponder> Get(size_t index) {
    absl::MutexLock lock(&mutex_);
    auto there = [this, index]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return responders_.size() > index; };
    if (!mutex_.AwaitWithTimeout(absl::Condition(&there), absl::Seconds(20))) return nullptr;
    return responders_[index];
  }
  HttpRequest Request(size_t index) {
    absl::MutexLock lock(&mutex_);
    return requests_.at(index);
  }
  size_t size() {
    absl::MutexLock lock(&mutex_);
    return responders_.size();
  }
  void Drop() {
    absl::MutexLock lock(&mutex_);
    responders_.clear();
  }

 private:
  absl::Mutex mutex_;
  std::vector<HttpRequest> requests_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<HttpResponder>> responders_ ABSL_GUARDED_BY(mutex_);
};

class HttpFixture : public ::testing::Test {
 protected:
  void StartServer(HttpServer::Options options = {}) {
    options.listen = "127.0.0.1:0";
    options.threads = 2;
    auto echo = [](HttpRequest request, std::shared_ptr<HttpResponder> responder) {
      responder->Send(200, "text/plain", request.method + " " + request.path + " " + request.body, {});
    };
    auto throws = [](HttpRequest, std::shared_ptr<HttpResponder>) { throw std::runtime_error("handler"); };
    auto server = HttpServer::Create(options, {{"POST", "/echo", echo},
                                               {"GET", "/echo", echo},
                                               {"GET", "/tree/*", echo},
                                               {"POST", "/held", held_.Handler()},
                                               {"GET", "/throws", throws}});
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = std::move(server).value();
  }
  void TearDown() override {
    held_.Drop();
    if (server_) server_->Stop(absl::InfinitePast());
  }

  /// The answer to the first request that is held, as a stream to `client`, whose end it tells. Null: it did not come.
  std::shared_ptr<HttpResponder> BeginStream(fakes::RawHttpClient& client, absl::Notification& gone) {
    client.SendRequest("POST", "/held");
    auto answer = held_.Get(0);
    if (answer == nullptr) return nullptr;
    answer->OnDisconnect([&gone] { gone.Notify(); });
    answer->StartStream(200, "text/event-stream", {});
    return answer;
  }

  HeldAnswers held_;
  std::unique_ptr<HttpServer> server_;
};

// The server's end of a connection of this process, by the address of the client's.
inline int ServerEndOf(int client) {
  sockaddr_in local{}, peer{};
  socklen_t size = sizeof(local);
  getsockname(client, reinterpret_cast<sockaddr*>(&local), &size);
  for (int fd = 0; fd < 1024; ++fd) {
    size = sizeof(peer);
    if (getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &size) == 0 && peer.sin_port == local.sin_port) return fd;
  }
  return -1;
}

inline bool Happens(absl::Notification& event) { return event.WaitForNotificationWithTimeout(absl::Seconds(20)); }

}  // namespace swiftcache
