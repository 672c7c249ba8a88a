// SPDX-License-Identifier: Apache-2.0
#include "services/ctl/json_output.h"

#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <string>

namespace swiftcache::services::ctl {
namespace {

constexpr char kBroker[] = "127.0.0.1:50050";

void AddEngine(v1::WatchResponse::Snapshot& snapshot, const std::string& name) {
  v1::EngineInfo& info = *snapshot.add_engines()->mutable_info();
  info.set_name(name);
  info.set_model_name(name + "-model");
  info.set_state(v1::READY);
  info.set_max_model_len_tokens(2048);
  info.mutable_kv()->set_kv_cache_dtype("bf16");
  info.mutable_kv()->set_block_tokens(16);
  info.mutable_kv()->set_block_bytes(1000);
  info.mutable_kv()->set_num_blocks(64);
  info.set_lease_channel("/run/" + name);
}

// `code` lends to `chat`, whose model has a limit.
ClusterTable Sharing() {
  v1::WatchResponse news;
  v1::WatchResponse::Snapshot& snapshot = *news.mutable_snapshot();
  AddEngine(snapshot, "chat");
  AddEngine(snapshot, "code");
  v1::EngineStatus& chat = *snapshot.mutable_engines(0);
  chat.mutable_info()->set_address("127.0.0.1:50061");
  chat.mutable_info()->set_never_lent_blocks(64);
  chat.mutable_info()->set_borrows(true);
  snapshot.mutable_engines(1)->mutable_info()->set_never_lent_blocks(2);
  v1::EngineLoad& load = *chat.mutable_load();
  load.set_running_requests(2);
  load.set_waiting_requests(1);
  load.set_kv_blocks_used(3);
  load.set_kv_blocks_cached(4);
  load.set_prompt_tokens_computed(50);
  load.set_prompt_tokens_local(30);
  load.set_prompt_tokens_donor(20);
  load.set_reclaims(2);
  load.set_last_reclaim_micros(1500);
  v1::Lease& lease = *snapshot.add_leases();
  lease.set_lease_id(9223372036854775807);
  lease.set_state(v1::GRANTED);
  lease.set_donor("code");
  lease.set_borrower("chat");
  lease.set_borrower_model("chat-model");
  lease.mutable_extent()->set_first_block(60);
  lease.mutable_extent()->set_num_blocks(4);
  lease.set_num_bytes(4000);
  lease.set_borrower_blocks(8);
  lease.set_epoch(18446744073709551615U);
  snapshot.add_limits()->set_model_name("chat-model");
  snapshot.mutable_limits(0)->set_max_borrowed_bytes(9000);
  ClusterTable cluster;
  cluster.Apply(news);
  return cluster;
}

constexpr char kEngines[] =
    R"("engines":[{"engine":"chat","model":"chat-model","state":"READY","address":"127.0.0.1:50061",)"
    R"("max_model_len_tokens":2048,"running_requests":2,"waiting_requests":1,"kv_cache_dtype":"bf16",)"
    R"("block_tokens":16,"block_bytes":1000,"own_bytes":64000,"used_bytes":3000,"cached_bytes":4000,"lends":false,)"
    R"("lend_reserve_bytes":64000,"lent_bytes":0,"borrows":true,"borrowed_bytes":4000,"limit_bytes":9000,)"
    R"("prompt_computed_tokens":50,"prompt_local_tokens":30,"prompt_donor_tokens":20,"reclaims":2,)"
    R"("last_reclaim_seconds":0.0015},)"
    R"({"engine":"code","model":"code-model","state":"READY","address":null,"max_model_len_tokens":2048,)"
    R"("running_requests":0,"waiting_requests":0,"kv_cache_dtype":"bf16","block_tokens":16,"block_bytes":1000,)"
    R"("own_bytes":64000,"used_bytes":0,"cached_bytes":0,"lends":true,"lend_reserve_bytes":2000,"lent_bytes":4000,)"
    R"("borrows":false,"borrowed_bytes":0,"limit_bytes":null,)"
    R"("prompt_computed_tokens":0,"prompt_local_tokens":0,"prompt_donor_tokens":0,"reclaims":0,)"
    R"("last_reclaim_seconds":null}])";
constexpr char kLeases[] =
    R"("leases":[{"lease_id":"9223372036854775807","state":"GRANTED","donor":"code","borrower":"chat","donor_first_block":60,)"
    R"("donor_blocks":4,"borrower_blocks":8,"bytes":4000,"epoch":"18446744073709551615"}],)"
    R"("limits":[{"model":"chat-model","limit_bytes":9000,"borrowed_bytes":4000,"engines":1}])";
constexpr char kWorth[] =
    R"("pairs":[{"donor_model":"code-model","borrower_model":"chat-model","lent_bytes":4000,"lent_byte_seconds":0,)"
    R"("leases":0,"ended":{}}],"models":[])";

const std::string kBegin = std::string(R"({"broker":")") + kBroker + R"(",)";

TEST(JsonOutputTest, StatusHasTheEnginesWithUnitsInTheNames) {
  EXPECT_EQ(StatusJson(kBroker, Sharing()), kBegin + kEngines + "}");
}

TEST(JsonOutputTest, LeaseLsHasLeasesLimitsAndTheirWorth) {
  EXPECT_EQ(LeasesJson(kBroker, Sharing()), kBegin + kLeases + "," + kWorth + "}");
}

TEST(JsonOutputTest, TopHasBothOnOneLine) {
  EXPECT_EQ(TopJson(kBroker, Sharing()), kBegin + kEngines + "," + kLeases + "}");
}

TEST(JsonOutputTest, AnEmptyClusterHasEmptyLists) {
  EXPECT_EQ(TopJson(kBroker, ClusterTable()), kBegin + R"("engines":[],"leases":[],"limits":[]})");
}

TEST(JsonOutputTest, ALeaseThatIsOnlyOfferedHasNoEpoch) {
  v1::WatchResponse news;
  news.mutable_lease()->set_lease_id(6);
  news.mutable_lease()->set_state(v1::OFFERED);
  ClusterTable cluster;
  cluster.Apply(news);
  EXPECT_NE(LeasesJson(kBroker, cluster).find(R"("epoch":null)"), std::string::npos);
}

TEST(JsonOutputTest, TheFlagIsTableUnlessJsonIsWanted) {
  for (const char* words : {"status", "status -o json", "status --output=json", "status --output table"}) {
    CLI::App app;
    const auto output = AddOutputFlag(*app.add_subcommand("status"));
    app.parse(words);
    EXPECT_EQ(*output == kJson, std::string(words).find("json") != std::string::npos) << words;
  }
  CLI::App app;
  AddOutputFlag(*app.add_subcommand("status"));
  EXPECT_THROW(app.parse("status -o yaml"), CLI::ValidationError);
}

}  // namespace
}  // namespace swiftcache::services::ctl
