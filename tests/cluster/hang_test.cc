// SPDX-License-Identifier: Apache-2.0
// A donor has its memory back in time, and tokens are right, while step loops hang.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#include "tests/cluster/lease_nodes.h"

namespace swiftcache::engine::exec {
namespace {

// A donor of 160 blocks and a borrower whose step loops hang when the test says so.
class HangTest : public LeaseTest, public testing::WithParamInterface<Way> {
 protected:
  static constexpr int64_t kDonorBlocks = 160, kDonorBlockTokens = 8;
  // What is due together is late together, by one wake-up that comes late: of four tests all may be, of all others few are.
  static void TearDownTestSuite() {
    std::ranges::sort(late_, std::greater());
    for (size_t i = 0; i < late_.size() && i < 4; ++i) late_[i] = 0;
    EXPECT_LE(std::accumulate(late_.begin(), late_.end(), 0.0), revoked_ / 10) << "of " << revoked_;
  }

  NodeOptions Donor() {
    return {.name = "near",
            .num_blocks = kDonorBlocks,
            .block_tokens = kDonorBlockTokens,
            .lends = true,
            .gate = &donors_gate_};
  }
  NodeOptions Borrower() {
    return {
        .name = "chat", .num_blocks = 72, .kv_dtype = GetParam().kv_dtype, .way = GetParam(), .gate = &borrowers_gate_};
  }
  static std::shared_ptr<Recording> AskDonor(Engine& engine, int64_t prompt_tokens) {
    std::mt19937 rng(5);
    return Ask(engine, "the donor's client", SomeTokens(rng, prompt_tokens), kOutputTokens);
  }
  std::vector<int32_t> WantedOfDonor(int64_t prompt_tokens) {
    Node node({.name = "alone", .num_blocks = 4096, .shares = false}, shm_dir_, hub_);
    const auto recording = AskDonor(node.engine(), prompt_tokens);
    EXPECT_EQ(recording->Wait(), absl::OkStatus());
    return recording->tokens();
  }
  // From here on leases are counted: all that were granted are in use, and none was revoked.
  void Hang(Node& donor, Node& borrower) {
    EXPECT_TRUE(ComesTrue([&] { return WithoutTheLoop(donor, borrower) == 0; }));
    EXPECT_EQ(donor.reclaims().count, 0);
    given_ = donor.num_given();
    borrowers_gate_.Close();
  }
  // All leases came back though their borrower's loop hangs.
  void ExpectBackWithoutTheLoop(Node& donor, Node& borrower) {
    EXPECT_TRUE(ComesTrue([&] {
      const auto count = static_cast<double>(donor.reclaims().count);  // before what it is compared with
      return count >= given_ && count <= WithoutTheLoop(donor, borrower);
    }));
    // Late as on a loaded machine; a deadline that a donor forgets shows itself after more seconds, or never.
    EXPECT_LE(donor.reclaims().last, kRevokeDeadline + absl::Seconds(1.5));
    revoked_ += donor.reclaims().count;
    late_.push_back(donor.Count("swiftcache_lease_late_total"));
  }
  // Leases that its coordinator gave back unread, those that it lost, to a fence mostly, and those that it never used.
  static double WithoutTheLoop(Node& donor, Node& borrower) {
    const auto of = [&](const char* what) { return borrower.Count(absl::StrCat("swiftcache_lease_", what, "_total")); };
    return donor.Count("swiftcache_lease_granted_total") - of("borrowed") + of("unread") + of("lost");
  }

  static inline double revoked_ = 0;        // by all tests
  static inline std::vector<double> late_;  // of each test
  double given_ = 0;
  Gate donors_gate_, borrowers_gate_;
};

INSTANTIATE_TEST_SUITE_P(AllWays, HangTest, testing::ValuesIn(kWays), WayName);

TEST_P(HangTest, ADonorHasItsMemoryByTheDeadlineWhileItsBorrowersLoopHangs) {
  const Talk wanted = Alone(GetParam().kv_dtype);
  const int64_t all_tokens = (kDonorBlocks - 1) * kDonorBlockTokens - kOutputTokens;  // wants all that is lent
  Node near(Donor(), shm_dir_, hub_), chat(Borrower(), shm_dir_, hub_);
  Talk got;
  std::jthread client([&] { got = ConverseOnLeases(chat.engine(), [&] { Hang(near, chat); }); });
  EXPECT_TRUE(borrowers_gate_.WaitUntilSomebodyHangs());
  EXPECT_GT(chat.engine().Load().kv_blocks_leased_in_used, 0);
  const auto answer = AskDonor(near.engine(), all_tokens);
  EXPECT_EQ(answer->Wait(), absl::OkStatus()) << "the borrower hangs all the while";
  ExpectBackWithoutTheLoop(near, chat);
  borrowers_gate_.Open();
  client.join();
  EXPECT_EQ(answer->tokens(), WantedOfDonor(all_tokens));
  EXPECT_EQ(got.histories, wanted.histories);
}

TEST_P(HangTest, TheDeadlineFencesWhileTheLoopsOfBothHang) {
  const Talk wanted = Alone(GetParam().kv_dtype);
  constexpr int64_t kFewTokens = 100;
  Node near(Donor(), shm_dir_, hub_), chat(Borrower(), shm_dir_, hub_);
  std::shared_ptr<Recording> answer;
  Talk got;
  std::jthread client([&] {
    got = ConverseOnLeases(chat.engine(), [&] {
      donors_gate_.Close();
      answer = AskDonor(near.engine(), kFewTokens);
      EXPECT_TRUE(donors_gate_.WaitUntilSomebodyHangs());
      Hang(near, chat);
    });
  });
  EXPECT_TRUE(borrowers_gate_.WaitUntilSomebodyHangs());
  for (int64_t i = hub_.num_leases(); i-- > 0;) EXPECT_TRUE(hub_.Revoke(i));  // those that are gone lay behind it
  ExpectBackWithoutTheLoop(near, chat);
  borrowers_gate_.Open();
  donors_gate_.Open();
  client.join();
  EXPECT_EQ(answer->Wait(), absl::OkStatus());
  EXPECT_EQ(answer->tokens(), WantedOfDonor(kFewTokens));
  EXPECT_EQ(got.histories, wanted.histories);
}

}  // namespace
}  // namespace swiftcache::engine::exec
