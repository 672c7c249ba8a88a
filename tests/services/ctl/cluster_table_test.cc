// SPDX-License-Identifier: Apache-2.0
#include "services/ctl/cluster_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace swiftcache::services::ctl {
namespace {

v1::EngineStatus EngineNamed(const std::string& name) {
  v1::EngineStatus engine;
  engine.mutable_info()->set_name(name);
  engine.mutable_info()->set_model_name(name + "-model");
  engine.mutable_info()->set_state(v1::READY);
  engine.mutable_info()->mutable_kv()->set_block_bytes(1 << 20);
  engine.mutable_info()->mutable_kv()->set_num_blocks(64);
  engine.mutable_info()->set_lease_channel("/run/" + name);
  engine.mutable_info()->set_borrows(true);
  engine.mutable_load()->set_kv_blocks_used(3);
  return engine;
}

v1::WatchResponse LeaseEvent(int64_t id, v1::LeaseState state, int64_t first_block = 60) {
  v1::WatchResponse news;
  v1::Lease& lease = *news.mutable_lease();
  lease.set_lease_id(id);
  lease.set_state(state);
  lease.set_donor("code");
  lease.set_borrower("chat");
  lease.set_borrower_model("chat-model");
  lease.mutable_extent()->set_first_block(first_block);
  lease.mutable_extent()->set_num_blocks(4);
  lease.set_num_bytes(4 << 20);
  lease.set_borrower_blocks(8);
  lease.set_epoch(77);
  return news;
}

v1::WatchResponse LimitNews(const std::string& model, std::optional<int64_t> bytes) {
  v1::WatchResponse news;
  news.mutable_limit()->set_model_name(model);
  if (bytes) news.mutable_limit()->set_max_borrowed_bytes(*bytes);
  return news;
}

class ClusterTableTest : public ::testing::Test {
 protected:
  void SetUp() override {
    v1::WatchResponse snapshot;
    for (const char* name : {"chat", "code"}) *snapshot.mutable_snapshot()->add_engines() = EngineNamed(name);
    cluster_.Apply(snapshot);
  }
  ClusterTable cluster_;
};

TEST_F(ClusterTableTest, FollowsSnapshotAndNews) {
  EXPECT_EQ(cluster_.Summary(), "2 engines, 0 leases of 0 B");
  cluster_.Apply(LeaseEvent(5, v1::OFFERED));
  cluster_.Apply(LeaseEvent(5, v1::GRANTED));
  cluster_.Apply(LeaseEvent(6, v1::GRANTED, 56));
  EXPECT_EQ(cluster_.Summary(), "2 engines, 2 leases of 8 MiB");
  cluster_.Apply(LeaseEvent(5, v1::RELEASED));
  cluster_.Apply(LeaseEvent(6, v1::FENCED));
  v1::WatchResponse gone;
  gone.set_removed("chat");
  cluster_.Apply(gone);
  EXPECT_EQ(cluster_.Summary(), "1 engine, 0 leases of 0 B");
}

TEST_F(ClusterTableTest, AnEnginesLineShowsWhatItLendsAndBorrowsAndWhereItsHitsWere) {
  cluster_.Apply(LeaseEvent(5, v1::GRANTED));
  cluster_.Apply(LimitNews("chat-model", 8 << 20));
  v1::WatchResponse news;
  *news.mutable_updated() = EngineNamed("chat");
  v1::EngineLoad& load = *news.mutable_updated()->mutable_load();
  load.set_prompt_tokens_computed(50);
  load.set_prompt_tokens_local(30);
  load.set_prompt_tokens_donor(20);
  load.set_reclaims(2);
  load.set_last_reclaim_micros(1234);
  cluster_.Apply(news);
  EXPECT_EQ(cluster_.ShowEngines(),
            "ENGINE  STATE  RUNNING  WAITING     OWN   USED  CACHED   LENT  RESERVE  BORROWED  LIMIT  HIT LOCAL  "
            "HIT DONOR  RECLAIMS  LAST RECLAIM\n"
            "chat    READY        0        0  64 MiB  3 MiB     0 B    0 B        -     4 MiB  8 MiB        30%  "
            "      20%         2        1.2 ms\n"
            "code    READY        0        0  64 MiB  3 MiB     0 B  4 MiB        -       0 B      -          -  "
            "        -         0             -\n");
}

TEST_F(ClusterTableTest, AnEnginesLineShowsWhatItNeverLendsAndWhetherItBorrows) {
  const auto row = [&](const auto& change) {
    v1::WatchResponse news;
    *news.mutable_updated() = EngineNamed("code");
    change(*news.mutable_updated()->mutable_info());
    cluster_.Apply(news);
    const std::vector<std::string> lines = absl::StrSplit(cluster_.ShowEngines(), '\n');
    const std::vector<std::string> cells = absl::StrSplit(lines[2], "  ", absl::SkipWhitespace());
    return absl::StrCat("reserve ", absl::StripAsciiWhitespace(cells[8]), ", borrowed ",
                        absl::StripAsciiWhitespace(cells[9]));
  };
  EXPECT_EQ(row([](v1::EngineInfo& info) { info.set_never_lent_blocks(16); }), "reserve 16 MiB, borrowed 0 B");
  EXPECT_EQ(row([](v1::EngineInfo& info) { info.set_never_lent_blocks(64); }), "reserve all, borrowed 0 B");
  EXPECT_EQ(row([](v1::EngineInfo& info) { info.clear_lease_channel(); }), "reserve all, borrowed 0 B");
  EXPECT_EQ(row([](v1::EngineInfo& info) { info.set_borrows(false); }), "reserve -, borrowed -");
}

TEST_F(ClusterTableTest, ALeasesLineNamesTheDonorsBlocks) {
  cluster_.Apply(LeaseEvent(5, v1::GRANTED));
  cluster_.Apply(LeaseEvent(6, v1::OFFERED, 56));
  EXPECT_EQ(cluster_.ShowLeases(),
            "LEASE  STATE    DONOR  BORROWER  BLOCKS  BYTES  BORROWER BLOCKS  EPOCH\n"
            "    6  OFFERED  code   chat      56-59   4 MiB                8      -\n"
            "    5  GRANTED  code   chat      60-63   4 MiB                8     77\n");
}

TEST_F(ClusterTableTest, LimitsAreShownUntilTheyAreLiftedAlsoOfModelsThatNobodyServes) {
  EXPECT_EQ(cluster_.ShowLimits(), "");
  cluster_.Apply(LeaseEvent(5, v1::GRANTED));
  cluster_.Apply(LimitNews("chat-model", 8 << 20));
  cluster_.Apply(LimitNews("nosuch", 0));
  EXPECT_EQ(cluster_.ShowLimits(),
            "MODEL       LIMIT  BORROWED  ENGINES\n"
            "chat-model  8 MiB     4 MiB        1\n"
            "nosuch        0 B       0 B        0\n");
  cluster_.Apply(LimitNews("nosuch", std::nullopt));
  v1::WatchResponse snapshot;
  *snapshot.mutable_snapshot()->add_limits() = LimitNews("code-model", 1).limit();
  cluster_.Apply(snapshot);
  EXPECT_EQ(cluster_.ShowLimits(),
            "MODEL       LIMIT  BORROWED  ENGINES\n"
            "code-model    1 B       0 B        0\n");
}

// As the broker counts it: a borrower that it cannot see keeps what it holds.
TEST_F(ClusterTableTest, WhatAModelBorrowsCountsWhetherOrNotItsEngineIsThere) {
  cluster_.Apply(LimitNews("chat-model", 8 << 20));
  cluster_.Apply(LeaseEvent(5, v1::GRANTED));
  v1::WatchResponse gone;
  gone.set_removed("chat");
  cluster_.Apply(gone);
  EXPECT_EQ(cluster_.ShowLimits(),
            "MODEL       LIMIT  BORROWED  ENGINES\n"
            "chat-model  8 MiB     4 MiB        0\n");
}

}  // namespace
}  // namespace swiftcache::services::ctl
