// SPDX-License-Identifier: Apache-2.0
// Greedy tokens of conversations that outgrow the borrower's arena are those of an engine with enough memory, in place and
// streamed, mapped and not, in quiet and while leases are revoked all the time.
#include <gtest/gtest.h>

#include <memory>
#include <random>

#include "tests/cluster/lease_nodes.h"
#include "tests/cluster/storm.h"

namespace swiftcache::engine::exec {
namespace {

class TokensTest : public LeaseTest, public testing::WithParamInterface<Way> {};

INSTANTIATE_TEST_SUITE_P(AllWays, TokensTest, testing::ValuesIn(kWays), WayName);

TEST_P(TokensTest, AreTheSameWithBlocksInLeases) {
  const Talk wanted = Alone(GetParam().kv_dtype);
  const Talk got = Sharing(GetParam());
  EXPECT_EQ(got.histories, wanted.histories);
  EXPECT_GT(got.donor_tokens, 0);
  std::printf("%ld prompt tokens came from donors\n", static_cast<long>(got.donor_tokens));
}

TEST_P(TokensTest, AreTheSameOnDevicesThatComputeLate) {
  const Talk wanted = Alone(GetParam().kv_dtype);
  const Talk quiet = Sharing(GetParam(), nullptr, /*late=*/true);
  EXPECT_EQ(quiet.histories, wanted.histories);
  EXPECT_GT(quiet.donor_tokens, 0);
  Storm storm(hub_);
  const Talk got = Sharing(GetParam(), &storm, /*late=*/true);
  EXPECT_EQ(got.histories, wanted.histories);
  EXPECT_GT(storm.revocations(), 0);
}

TEST_P(TokensTest, AreTheSameWhileLeasesAreRevokedAllTheTime) {
  const Talk wanted = Alone(GetParam().kv_dtype);
  Storm storm(hub_);
  const Talk got = Sharing(GetParam(), &storm);
  EXPECT_EQ(got.histories, wanted.histories);
  EXPECT_GT(got.donor_tokens, 0);
  EXPECT_GT(storm.revocations(), 0);
  EXPECT_GT(got.computed_tokens, wanted.computed_tokens) << "own memory cannot hold what all the leases did";
  std::printf("%ld revocations, %ld leases ended, %ld prompt tokens came from donors, %ld were computed, of %ld\n",
              static_cast<long>(storm.revocations()), static_cast<long>(hub_.ended()),
              static_cast<long>(got.donor_tokens), static_cast<long>(got.computed_tokens),
              static_cast<long>(wanted.computed_tokens));
}

// One donor's memory comes back as other memory all the time, the other's as it was.
TEST_P(TokensTest, AreTheSameWhereMemoryComesBackAsOther) {
  const Talk wanted = Alone(GetParam().kv_dtype);
  Storm storm(hub_);
  const Talk got = Sharing(GetParam(), &storm, /*late=*/false, /*remaps=*/true);
  EXPECT_EQ(got.histories, wanted.histories);
  EXPECT_GT(got.donor_tokens, 0);
  EXPECT_GT(storm.revocations(), 0);
}

TEST_F(LeaseTest, ARequestWhoseLeasesAreGoneForGoodEndsAndOthersGoOn) {
  Gate gate;  // of the steps, so that the donor goes while they need it
  Node chat({.name = "chat", .num_blocks = 72, .lease_patience = absl::Seconds(3), .gate = &gate}, shm_dir_, hub_);
  // With its memory there is room for all that the context allows: only without it the request has too little.
  auto donor = std::make_unique<Node>(NodeOptions{.name = "near", .num_blocks = 2048, .lends = true}, shm_dir_, hub_);
  const std::vector<int32_t> wide_prompt(72 * 4 + 40, 7);  // more than the own 72 blocks of 4 tokens
  const auto wide = Ask(chat.engine(), "wide", wide_prompt, 100'000);
  ASSERT_TRUE(ComesTrue([&] { return chat.engine().Load().kv_blocks_leased_in_used > 0; }));
  gate.Close();
  EXPECT_TRUE(gate.WaitUntilSomebodyHangs());
  donor.reset();
  gate.Open();
  EXPECT_EQ(wide->Wait().code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(Ask(chat.engine(), "narrow", std::vector<int32_t>(20, 7), 4)->Wait(), absl::OkStatus());
  EXPECT_EQ(chat.engine().Load().kv_blocks_used, 0);
}

}  // namespace
}  // namespace swiftcache::engine::exec
