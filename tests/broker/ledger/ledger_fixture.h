// SPDX-License-Identifier: Apache-2.0
// A ledger with a clock, and engines of round numbers: blocks of 4 KiB, 160 of them.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "broker/ledger/ledger.h"

namespace swiftcache::broker::ledger {

inline constexpr int64_t kBlock = 4096;
inline constexpr int64_t kBlocks = 160;

inline Party PartyOf(const std::string& name, const std::string& instance = "i1") { return {name, instance}; }

inline Engine EngineOf(const std::string& name, const std::string& instance = "i1") {
  return {.party = PartyOf(name, instance),
          .model_name = name + "-model",
          .node_id = "node",
          .channel = "/run/" + name,
          .page_bytes = 4096,
          .block_bytes = kBlock,
          .block_tokens = 16,
          .num_blocks = kBlocks,
          .ready = true};
}

/// What the engine "code" says of a lease of one block of its arena. Its id is the block's number plus one.
inline Lease LeaseOfBlock(int64_t block, const std::string& borrower) {
  return {.id = LeaseId(block + 1),
          .donor = PartyOf("code"),
          .borrower = PartyOf(borrower),
          .borrower_model = borrower + "-model",
          .extent = {.first_block = block, .num_blocks = 1},
          .num_bytes = kBlock,
          .borrower_blocks = 1,
          .epoch = Epoch(1),
          .state = LeaseState::kGranted,
          .channel = "/run/code",
          .capability = "c"};
}

class LedgerTest : public ::testing::Test {
 protected:
  LedgerTest() { Restart(1); }

  static Options TestOptions() {
    Options options;
    options.elastic = {.window = absl::Seconds(60), .headroom_percent = 0};
    options.max_lease_bytes = 10 * kBlock;
    return options;
  }
  void Restart(uint32_t prefix) { Restart(prefix, TestOptions()); }
  void Restart(uint32_t prefix, Options options) {
    options.id_prefix = prefix;
    ledger_ = std::make_unique<Ledger>(
        options, [this, prefix] { return absl::StrCat("capability-", prefix, "-", ++capabilities_); });
  }
  void TearDown() override { ExpectSound(); }
  void ExpectSound() { EXPECT_EQ(ledger_->CheckInvariants(), absl::OkStatus()); }

  /// Enters an engine that needs `used` of its blocks.
  void AddEngine(const Engine& engine, const std::vector<Lease>& given = {}, int64_t used = 0) {
    ledger_->AddEngine(engine, given, now_);
    ASSERT_EQ(ledger_->ReportWindow(engine.party, {.used_blocks = used}, now_), absl::OkStatus());
  }
  LeaseResponse Request(const std::string& borrower, int64_t blocks, int64_t waiting_tokens = 0, std::string key = "") {
    if (key.empty()) key = absl::StrCat("key-", ++keys_);
    const auto answer = ledger_->RequestLease(
        PartyOf(borrower), {.key = key, .want_bytes = blocks * kBlock, .waiting_tokens = waiting_tokens}, now_);
    EXPECT_TRUE(answer.ok()) << answer.status();
    return answer.ok() ? *answer : LeaseResponse{};
  }
  /// What the donor says of a lease. (Of one that the table does not have: `id` alone says which.)
  absl::Status Report(const std::string& who, LeaseId id, LeaseState state, uint64_t epoch = 7) {
    Lease lease = Current(id);
    lease.id = id;
    if (lease.donor.name.empty()) lease.donor = PartyOf(who);
    lease.state = state;
    lease.epoch = Epoch(epoch);
    return ledger_->ReportLease(PartyOf(who), lease, now_);
  }
  absl::Status Say(const Lease& lease) { return ledger_->ReportLease(lease.donor, lease, now_); }
  /// A lease of `blocks` (at most 10) from whoever lends them, in use.
  Lease Active(const std::string& borrower, int64_t blocks) {
    const LeaseResponse answer = Request(borrower, blocks);
    EXPECT_EQ(answer.leases.size(), 1u) << answer.shortage;
    if (answer.leases.empty()) return {};
    Activate(answer.leases);
    return Current(answer.leases[0].id);
  }
  void Activate(const std::vector<Lease>& leases) {
    for (const Lease& lease : leases) {
      EXPECT_EQ(Report(lease.donor.name, lease.id, LeaseState::kGranted), absl::OkStatus());
    }
  }
  /// As the table has it; a lease of id 0 where it does not.
  Lease Current(LeaseId id) {
    for (const Lease& lease : ledger_->Snapshot()) {
      if (lease.id == id) return lease;
    }
    return {};
  }
  bool Known(LeaseId id) { return Current(id).id == id; }
  /// The states that were told of a lease since the last call for any.
  std::vector<LeaseState> StatesOf(LeaseId id) {
    std::vector<LeaseState> states;
    for (const Change& change : ledger_->TakeChanges()) {
      if (change.lease.id == id) states.push_back(change.lease.state);
    }
    return states;
  }
  int64_t BlocksOf(const std::string& borrower) {
    int64_t blocks = 0;
    for (const Lease& lease : ledger_->Snapshot()) {
      if (lease.borrower.name == borrower && lease.state != LeaseState::kRevoking) blocks += lease.extent.num_blocks;
    }
    return blocks;
  }

  std::unique_ptr<Ledger> ledger_;
  absl::Time now_ = absl::UnixEpoch();
  int64_t capabilities_ = 0, keys_ = 0;
};

inline int64_t TotalBlocks(const std::vector<Lease>& leases) {
  int64_t blocks = 0;
  for (const Lease& lease : leases) blocks += lease.extent.num_blocks;
  return blocks;
}

}  // namespace swiftcache::broker::ledger
