// SPDX-License-Identifier: Apache-2.0
#include "common/rpc/listener.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <string>

#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "tests/fakes/few_descriptors.h"

namespace swiftcache {
namespace {

// A client's socket.
class Client {
 public:
  explicit Client(int family = AF_INET) : family_(family), fd_(socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0)) {}
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;
  ~Client() { close(fd_); }

  /// To the loopback interface. 0 or errno.
  int Connect(int port) {
    sockaddr_in v4{.sin_family = AF_INET, .sin_port = htons(port), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    sockaddr_in6 v6{.sin6_family = AF_INET6, .sin6_port = htons(port), .sin6_addr = in6addr_loopback};
    const bool is_v4 = family_ == AF_INET;
    const auto* where = is_v4 ? reinterpret_cast<const sockaddr*>(&v4) : reinterpret_cast<const sockaddr*>(&v6);
    return connect(fd_, where, is_v4 ? sizeof v4 : sizeof v6) == 0 ? 0 : errno;
  }
  /// Waits until the other end has closed.
  bool IsClosed() {
    char byte = 0;
    return recv(fd_, &byte, 1, 0) <= 0;
  }

 private:
  const int family_, fd_;
};

class ListenerTest : public ::testing::Test {
 protected:
  ~ListenerTest() override {
    if (listener_ != nullptr) listener_->Stop();
  }
  void Listen(const std::string& host) {
    auto listener = Listener::Create({.host = host, .port = 0});
    ASSERT_TRUE(listener.ok()) << listener.status();
    listener_ = *std::move(listener);
    listener_->Start([this](int, int connection) {
      {
        absl::MutexLock lock(&mutex_);
        ++accepted_;
      }
      close(connection);
    });
  }
  bool WaitForAccepted(int count) {
    absl::MutexLock lock(&mutex_);
    const auto there = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return accepted_ == count; };
    return mutex_.AwaitWithTimeout(absl::Condition(&there), absl::Seconds(30));
  }
  int accepted() {
    absl::MutexLock lock(&mutex_);
    return accepted_;
  }

  std::unique_ptr<Listener> listener_;
  absl::Mutex mutex_;
  int accepted_ ABSL_GUARDED_BY(mutex_) = 0;
};

bool HasIpv6() {
  const int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const sockaddr_in6 loopback{.sin6_family = AF_INET6, .sin6_addr = in6addr_loopback};
  const bool has = bind(fd, reinterpret_cast<const sockaddr*>(&loopback), sizeof loopback) == 0;
  close(fd);
  return has;
}

TEST_F(ListenerTest, WhoListensEverywhereTakesIPv4AndIPv6) {
  for (const char* everywhere : {"0.0.0.0", "::"}) {
    SCOPED_TRACE(everywhere);
    const int before = accepted();
    ASSERT_NO_FATAL_FAILURE(Listen(everywhere));
    Client v4, v6(AF_INET6);
    EXPECT_EQ(v4.Connect(listener_->port()), 0);
    EXPECT_TRUE(WaitForAccepted(before + 1));
    if (HasIpv6()) {
      EXPECT_EQ(v6.Connect(listener_->port()), 0);
      EXPECT_TRUE(WaitForAccepted(before + 2));
    }
    listener_->Stop();
  }
}

TEST_F(ListenerTest, OneAddressIsNoOther) {
  ASSERT_NO_FATAL_FAILURE(Listen("127.0.0.1"));
  Client v6(AF_INET6);
  EXPECT_NE(v6.Connect(listener_->port()), 0);
  if (!HasIpv6()) return;
  ASSERT_NO_FATAL_FAILURE(Listen("::1"));
  Client other(AF_INET6);
  EXPECT_EQ(other.Connect(listener_->port()), 0);
  EXPECT_TRUE(WaitForAccepted(1));
}

TEST_F(ListenerTest, ANameIsServedAtItsAddress) {
  ASSERT_NO_FATAL_FAILURE(Listen("localhost"));
  Client v4;
  EXPECT_EQ(v4.Connect(listener_->port()), 0);
  EXPECT_TRUE(WaitForAccepted(1));
}

TEST_F(ListenerTest, WhereOneAddressOfANameIsTakenItListensAtNone) {
  ASSERT_NO_FATAL_FAILURE(Listen("127.0.0.1"));
  const auto second = Listener::Create({.host = "localhost", .port = listener_->port()});
  ASSERT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(second.status().message()), testing::HasSubstr("in use"));
}

TEST_F(ListenerTest, WhenStoppedItListensNoMoreAndItsAddressIsFree) {
  ASSERT_NO_FATAL_FAILURE(Listen("127.0.0.1"));
  const int port = listener_->port();
  listener_->Stop();
  Client late;
  EXPECT_EQ(late.Connect(port), ECONNREFUSED);
}

TEST_F(ListenerTest, WhoComesWhileNoDescriptorIsLeftIsAcceptedLater) {
  ASSERT_NO_FATAL_FAILURE(Listen("127.0.0.1"));
  Client client;
  {
    const fakes::FewDescriptors none(0);
    EXPECT_EQ(client.Connect(listener_->port()), 0);  // to the kernel
    absl::SleepFor(absl::Milliseconds(300));          // accepting fails meanwhile
  }
  EXPECT_TRUE(WaitForAccepted(1));
}

TEST_F(ListenerTest, TheLastDescriptorsAreForOthers) {
  ASSERT_NO_FATAL_FAILURE(Listen("127.0.0.1"));
  bool turned_away = false;
  for (int i = 0; i < 5 && !turned_away; ++i) {  // what earlier tests left may close a descriptor just then
    const int before = accepted();
    Client client;
    const fakes::FewDescriptors some(10);
    EXPECT_EQ(client.Connect(listener_->port()), 0);
    EXPECT_TRUE(client.IsClosed());
    turned_away = accepted() == before;
  }
  EXPECT_TRUE(turned_away);
  const int before = accepted();
  Client client;
  EXPECT_EQ(client.Connect(listener_->port()), 0);
  EXPECT_TRUE(WaitForAccepted(before + 1));
}

}  // namespace
}  // namespace swiftcache
