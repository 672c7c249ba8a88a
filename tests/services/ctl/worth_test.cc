// SPDX-License-Identifier: Apache-2.0
#include "services/ctl/worth.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>

#include "services/ctl/json_output.h"

namespace swiftcache::services::ctl {
namespace {

constexpr int64_t kGiBHour = (int64_t{1} << 30) * 3600;

v1::EngineStatus& AddEngine(v1::WatchResponse& news, const std::string& name, const std::string& model) {
  v1::EngineStatus& engine = *news.mutable_snapshot()->add_engines();
  engine.mutable_info()->set_name(name);
  engine.mutable_info()->set_model_name(model);
  return engine;
}

v1::LeaseAccount& AddAccount(v1::EngineStatus& engine, const std::string& borrower, int64_t byte_seconds) {
  v1::LeaseAccount& account = *engine.mutable_load()->add_accounts();
  account.set_borrower_model(borrower);
  account.set_lent_byte_seconds(byte_seconds);
  account.set_leases(10);
  return account;
}

void AddEnded(v1::LeaseAccount& account, const std::string& reason, int64_t released, int64_t fenced) {
  v1::LeaseAccount::Ended& ended = *account.add_ended();
  ended.set_reason(reason);
  ended.set_released(released);
  ended.set_fenced(fenced);
}

// Two engines of `code` lend to `chat`, whose engine lent a little to one that is gone.
v1::WatchResponse Shared() {
  v1::WatchResponse news;
  for (const char* name : {"code", "code-2"}) {
    v1::EngineStatus& code = AddEngine(news, name, "code");
    code.mutable_load()->set_again_for_loans_tokens(60);
    v1::LeaseAccount& account = AddAccount(code, "chat", kGiBHour);
    AddEnded(account, "need", 3, 1);
    AddEnded(account, "given_back", 2, 0);
    AddEnded(account, "borrower_gone", 0, 1);
  }
  v1::EngineStatus& chat = AddEngine(news, "chat", "chat");
  chat.mutable_load()->set_saved_tokens(5000);
  chat.mutable_load()->set_again_for_losses_tokens(100);
  v1::LeaseAccount& gone = AddAccount(chat, "gone", kGiBHour / 1024);
  AddEnded(gone, "operator", 4, 0);
  AddEnded(gone, "limit", 3, 0);
  AddEnded(gone, "fairness", 2, 0);
  AddEnded(gone, "broker", 1, 0);
  AddEngine(news, "idle", "idle");
  v1::Lease& lease = *news.mutable_snapshot()->add_leases();
  lease.set_lease_id(5);
  lease.set_state(v1::GRANTED);
  lease.set_donor("code-2");
  lease.set_borrower("chat");
  lease.set_borrower_model("chat");
  lease.set_num_bytes(4 << 20);
  return news;
}

ClusterTable ClusterOf(const v1::WatchResponse& news) {
  ClusterTable cluster;
  cluster.Apply(news);
  return cluster;
}

TEST(WorthTest, APairsLineSaysWhatIsAndWasLentAndWhyItEnded) {
  EXPECT_EQ(Worth(ClusterOf(Shared())).ShowPairs(),
            "DONOR MODEL  BORROWER MODEL  LENT NOW  BYTE HOURS  LEASES  NEEDED BACK  OPERATOR  LIMIT  FAIRNESS  "
            "GIVEN BACK  OTHER ENDS  FENCED\n"
            "chat         gone                 0 B       1 MiB      10            0         4      3         2  "
            "         0           1       0\n"
            "code         chat               4 MiB       2 GiB      20            8         0      0         0  "
            "         4           2       4\n");
}

TEST(WorthTest, WhatModelsLentAndBorrowedAddsUpAndSoDoTokens) {
  EXPECT_EQ(Worth(ClusterOf(Shared())).ShowModels(),
            "MODEL  LENT, BYTE HOURS  BORROWED, BYTE HOURS  TOKENS SAVED  AGAIN FOR LOANS  AGAIN FOR LOSSES  "
            "NET TOKENS\n"
            "chat              1 MiB                 2 GiB          5000                0               100  "
            "     +4900\n"
            "code              2 GiB                   0 B             0              120                 0  "
            "      -120\n"
            "gone                0 B                 1 MiB             0                0                 0  "
            "        +0\n"
            "all             2.0 GiB               2.0 GiB          5000              120               100  "
            "     +4780\n");
}

TEST(WorthTest, WhereNobodyEverLentThereIsNoTable) {
  v1::WatchResponse news;
  AddEngine(news, "chat", "chat");
  const Worth worth(ClusterOf(news));
  EXPECT_EQ(worth.ShowPairs(), "");
  EXPECT_EQ(worth.ShowModels(), "");
}

TEST(WorthTest, AnOfferIsNotLent) {
  v1::WatchResponse news = Shared();
  news.mutable_snapshot()->mutable_leases(0)->set_state(v1::OFFERED);
  EXPECT_EQ(Worth(ClusterOf(news)).pairs()[1].lent_bytes, 0);
}

TEST(WorthTest, SumsStopAtTheLargestNumber) {
  v1::WatchResponse news;
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max(), kMin = std::numeric_limits<int64_t>::min();
  for (const char* name : {"a", "b"}) {
    v1::EngineStatus& engine = AddEngine(news, name, "m");
    AddEnded(AddAccount(engine, "m", kMax), "need", kMax, kMax);
    engine.mutable_load()->set_saved_tokens(kMax);
    engine.mutable_load()->set_again_for_loans_tokens(kMin);
  }
  const Worth worth(ClusterOf(news));
  EXPECT_EQ(worth.pairs()[0].lent_byte_seconds, kMax);
  EXPECT_EQ(worth.models()[0].net_tokens(), kMax);
  EXPECT_NE(worth.ShowPairs(), "");
  EXPECT_NE(worth.ShowModels(), "");
}

TEST(WorthTest, JsonHasPairsAndModels) {
  const std::string json = LeasesJson("broker", ClusterOf(Shared()));
  EXPECT_NE(json.find(R"("pairs":[{"donor_model":"chat","borrower_model":"gone","lent_bytes":0,)"
                      R"("lent_byte_seconds":3774873600,"leases":10,"ended":{"broker":{"released":1,"fenced":0},)"
                      R"("fairness":{"released":2,"fenced":0},"limit":{"released":3,"fenced":0},)"
                      R"("operator":{"released":4,"fenced":0}}},)"),
            std::string::npos)
      << json;
  EXPECT_NE(json.find(R"({"model":"code","lent_byte_seconds":7730941132800,"borrowed_byte_seconds":0,)"
                      R"("saved_tokens":0,"again_for_loans_tokens":120,"again_for_losses_tokens":0,)"
                      R"("net_tokens":-120})"),
            std::string::npos)
      << json;
}

}  // namespace
}  // namespace swiftcache::services::ctl
