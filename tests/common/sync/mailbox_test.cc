// SPDX-License-Identifier: Apache-2.0
#include "common/sync/mailbox.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

namespace swiftcache {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(MailboxTest, RefusesWhenFullAndLosesNothing) {
  Mailbox<int> mailbox(2);
  EXPECT_TRUE(mailbox.TryPush(1));
  EXPECT_TRUE(mailbox.TryPush(2));
  EXPECT_FALSE(mailbox.TryPush(3));
  mailbox.Push(4);
  EXPECT_THAT(mailbox.TakeAll(absl::ZeroDuration()), ElementsAre(1, 2, 4));
}

TEST(MailboxTest, CloseWakesTheTakerAndRefusesMore) {
  Mailbox<int> mailbox(2);
  std::thread closer([&] { mailbox.Close(); });
  EXPECT_THAT(mailbox.TakeAll(absl::Seconds(60)), IsEmpty());
  closer.join();
  EXPECT_FALSE(mailbox.TryPush(1));
}

TEST(MailboxTest, PushWakesTheTaker) {
  Mailbox<int> mailbox(2);
  std::thread pusher([&] { mailbox.TryPush(7); });
  EXPECT_THAT(mailbox.TakeAll(absl::Seconds(60)), ElementsAre(7));
  pusher.join();
}

}  // namespace
}  // namespace swiftcache
