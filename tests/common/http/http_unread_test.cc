// SPDX-License-Identifier: Apache-2.0
// What all clients together leave unread.
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <utility>

#include "common/http/http_server.h"
#include "tests/common/http/http_fixture.h"

namespace swiftcache {
namespace {

using fakes::RawHttpClient;

constexpr int64_t kMiB = 1 << 20;

class HttpUnreadTest : public HttpFixture {
 protected:
  static constexpr size_t kWhole = 64 * kMiB;  // more than the kernel takes, and than all may leave unread

  /// A client that leaves unread more than all may; it holds `let_go` until then.
  std::unique_ptr<RawHttpClient> FillUp(absl::Notification& let_go) {
    auto client = std::make_unique<RawHttpClient>(server_->address());
    const size_t next = held_.size();
    client->SendRequest("POST", "/held");
    const auto answer = held_.Get(next);
    if (answer == nullptr) return nullptr;
    std::shared_ptr<void> held(&let_go, [&let_go](void*) { let_go.Notify(); });
    answer->Send(200, "text/plain", std::string(kWhole, 'x'), {}, std::move(held));
    return client;
  }
};

TEST_F(HttpUnreadTest, WhatAllClientsLeaveUnreadIsBoundedAndNobodyIsLockedOut) {
  constexpr int kRequests = 64;
  std::atomic<int> scrapes = 0;
  StartServer({.metrics =
                   [&] {
                     ++scrapes;
                     return std::string(kMiB, 'x');
                   },
               .max_unsent_bytes = int64_t{1} << 30,
               .max_all_unsent_bytes = 2 * kMiB,
               .stall_timeout = absl::Minutes(10)});
  RawHttpClient greedy(server_->address());
  for (int i = 0; i < kRequests; ++i) greedy.SendRequest("GET", "/metrics");
  // Until nothing more is answered: what the kernel takes and two more.
  int before = -1;
  for (const absl::Time give_up = absl::Now() + absl::Seconds(20);
       absl::Now() < give_up && (before != scrapes || scrapes < 3);) {
    before = scrapes;
    absl::SleepFor(absl::Milliseconds(300));
  }
  EXPECT_LT(scrapes, kRequests);
  for (const char* path : {"/live", "/health", "/metrics"}) {
    RawHttpClient other(server_->address());
    for (int i = 0; i < 3; ++i) {
      other.SendRequest("GET", path);
      const auto response = other.ReadResponse();
      ASSERT_TRUE(response) << path;
      EXPECT_EQ(response->status, 200) << path;
    }
  }
  for (int i = 0; i < kRequests; ++i) {
    const auto response = greedy.ReadResponse();
    ASSERT_TRUE(response && response->complete) << i;
    EXPECT_EQ(response->body.size(), static_cast<size_t>(kMiB));
  }
}

TEST_F(HttpUnreadTest, AStreamThatIsReadGoesOnAndOneThatIsNotIsCutSooner) {
  StartServer({.max_unsent_bytes = 8 * kMiB,
               .burst_time = absl::Hours(1),
               .max_all_unsent_bytes = 2 * kMiB,
               .stall_timeout = absl::Minutes(10)});
  absl::Notification let_go, gone;
  RawHttpClient client(server_->address());
  const auto answer = BeginStream(client, gone);
  ASSERT_TRUE(answer);
  const auto full = FillUp(let_go);
  ASSERT_TRUE(full);
  ASSERT_TRUE(client.ReadHead());
  for (int i = 0; i < 100; ++i) {
    ASSERT_TRUE(answer->Write(std::string(16 << 10, 'x'))) << i;  // two at once: that one is read is heard later
    ASSERT_TRUE(client.ReadChunk()) << i;
  }
  EXPECT_FALSE(answer->Write(std::string(kMiB, 'x')));
  EXPECT_TRUE(Happens(gone));
  EXPECT_FALSE(let_go.HasBeenNotified());
  full->Close();
  EXPECT_TRUE(Happens(let_go));
}

TEST_F(HttpUnreadTest, WhoGoesGivesBackWhatWasNotRead) {
  StartServer({.max_unsent_bytes = 8 * kMiB,
               .burst_time = absl::Hours(1),
               .max_all_unsent_bytes = 2 * kMiB,
               .stall_timeout = absl::Minutes(10)});
  absl::Notification read, left;
  for (absl::Notification* let_go : {&read, &left}) {
    const auto full = FillUp(*let_go);
    ASSERT_TRUE(full);
    let_go == &read ? void(full->ReadResponse()) : full->Close();
    EXPECT_TRUE(Happens(*let_go));
  }
  held_.Drop();
  RawHttpClient client(server_->address());
  absl::Notification gone;
  const auto answer = BeginStream(client, gone);
  ASSERT_TRUE(answer);
  EXPECT_TRUE(answer->Write(std::string(kMiB, 'x')));
  answer->Finish();
  const auto response = client.ReadResponse();
  ASSERT_TRUE(response);
  EXPECT_EQ(response->body.size(), static_cast<size_t>(kMiB));
}

}  // namespace
}  // namespace swiftcache
