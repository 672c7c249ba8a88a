// SPDX-License-Identifier: Apache-2.0
#include "engine/transport/shm_transport.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <map>
#include <random>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "engine/transport/shm_message.h"
#include "tests/engine/transport/test_lease.h"
#include "tests/engine/transport/transport_harness.h"

namespace swiftcache::engine::transport {
namespace {

using kv::LeaseId;

constexpr int64_t kLeaseOffset = 768 * kKiB;  // so that a lease lies over three chunks

TEST(ShmTransportTest, WhatIsStoredIsReadInPlaceAndLoadedAndLiesInTheDonorsArena) {
  ShmFolder folder;
  Node donor(folder, {.name = "donor"}), borrower(folder, {.name = "borrower"});
  const LeaseView view = Lend(donor, borrower, kLease, kLeaseOffset, kLeaseBytes, 300000);
  const std::vector<std::byte> block = Pattern(300000, 1);
  const Ticket ticket = borrower.Store(kLease, 1000000, block.data(), 300000);
  ASSERT_EQ(borrower.events.Fate(ticket), absl::OkStatus());
  EXPECT_EQ(std::memcmp(donor.arena.base() + kLeaseOffset + 1000000, block.data(), 300000), 0);
  EXPECT_EQ(std::memcmp(BytesAt(view.base + 1000000), block.data(), 300000), 0);
  EXPECT_TRUE(view.Holds());
  std::vector<std::byte> loaded(300000);
  const Ticket load = borrower.transport->Load({{kLease, 1200000, 100000, At(loaded.data() + 200000)},
                                                {kLease, 1000000, 150000, At(loaded.data())},
                                                {kLease, 1150000, 50000, At(loaded.data() + 150000)}},
                                               {});
  EXPECT_TRUE(borrower.transport->Await(load).empty());
  EXPECT_EQ(loaded, block);
  EXPECT_EQ(borrower.transport->stats().stored_bytes, 300000);
  EXPECT_EQ(borrower.transport->stats().loaded_bytes, 300000);
  EXPECT_EQ(donor.transport->stats().received_bytes, 300000);
}

TEST(ShmTransportTest, ADonorKnowsThatHisMemoryWasReadInPlaceOrLoaded) {
  ShmFolder folder;
  Node donor(folder, {.name = "donor"}), borrower(folder, {.name = "borrower"});
  const LeaseView view = Lend(donor, borrower, kLease, kLeaseOffset, kLeaseBytes, 4096);
  const uint64_t before = donor.transport->stats().borrowers_read;
  EXPECT_EQ(donor.transport->stats().borrowers_read, before) << "nobody reads";
  view.NoteRead(1000);
  const absl::Time deadline = absl::Now() + absl::Seconds(20);  // the donor maps the word when it hears of it
  while (donor.transport->stats().borrowers_read == before && absl::Now() < deadline)
    absl::SleepFor(absl::Milliseconds(1));
  const uint64_t noted = donor.transport->stats().borrowers_read;
  EXPECT_NE(noted, before);
  std::vector<std::byte> loaded(4096);
  EXPECT_TRUE(borrower.transport->Await(borrower.transport->Load({{kLease, 0, 4096, At(loaded.data())}}, {})).empty());
  EXPECT_NE(donor.transport->stats().borrowers_read, noted);
  // Staging memory is full of other bytes; the word is none of the ring's.
  const std::vector<std::byte> block = Pattern(4096, 3);
  const uint64_t loads = donor.transport->stats().borrowers_read;
  for (int i = 0; i < 600; ++i) {  // more than once around
    ASSERT_EQ(borrower.events.Fate(borrower.Store(kLease, 0, block.data(), 4096)), absl::OkStatus());
  }
  EXPECT_EQ(donor.transport->stats().borrowers_read, loads);
}

TEST(ShmTransportTest, ItsProtocolIsItsKindAndTheVersionOfItsMessages) {
  ShmFolder folder;
  EXPECT_EQ(Node(folder, {.name = "donor"}).transport->protocol(), absl::StrCat("shm.", kShmVersion));
}

TEST(ShmTransportTest, ADonorMayCallTheFolderByAnotherPath) {
  ShmFolder folder;
  Node donor(folder, {.name = "donor"}), borrower(folder, {.name = "borrower"});
  OpenSpec spec = Granted(donor, borrower, kLease, 0, kMiB, 4096);
  spec.channel = "run/donor.sock";  // from where the donor stands
  const absl::StatusOr<LeaseView> view = OpenNow(borrower, spec);
  EXPECT_TRUE(view.ok()) << view.status();
}

TEST(ShmTransportTest, OnlyWhoTheGrantNamesAndShowsTheCapabilityIsLetIn) {
  ShmFolder folder;
  Node donor(folder, {.name = "donor"}), borrower(folder, {.name = "borrower"}), other(folder, {.name = "other"});
  const OpenSpec right = Granted(donor, borrower, kLease, 0, kMiB, 4096);
  OpenSpec wrong = right;
  wrong.capability = "c0ffef";
  EXPECT_EQ(OpenNow(borrower, wrong).status().code(), absl::StatusCode::kPermissionDenied);
  borrower.transport->Close(kLease);
  EXPECT_EQ(OpenNow(other, right).status().code(), absl::StatusCode::kPermissionDenied);
  OpenSpec unknown = right;
  unknown.lease = LeaseId(8);
  EXPECT_EQ(OpenNow(borrower, unknown).status().code(), absl::StatusCode::kPermissionDenied);
  OpenSpec nowhere = right;
  nowhere.lease = LeaseId(9);
  nowhere.channel = folder.path() + "/nobody.sock";
  EXPECT_EQ(OpenNow(borrower, nowhere).status().code(), absl::StatusCode::kUnavailable);
  OpenSpec stale = right;
  stale.epoch = kv::Epoch(right.epoch.value() + 2);
  EXPECT_EQ(OpenNow(borrower, stale).status().code(), absl::StatusCode::kInvalidArgument);
  borrower.transport->Close(kLease);
  // None of this spoils the grant, but a second channel is one too many. The donor notices an end a moment later.
  absl::StatusOr<LeaseView> view = OpenNow(borrower, right);
  while (!view.ok() && donor.events.borrower_gone.empty()) {
    borrower.transport->Close(kLease);
    view = OpenNow(borrower, right);
  }
  ASSERT_TRUE(view.ok()) << view.status();
}

TEST(ShmTransportTest, RenewalsAndRevocationsGoBothWays) {
  ShmFolder folder;
  Node donor(folder, {.name = "donor"}), borrower(folder, {.name = "borrower"});
  const OpenSpec spec = Granted(donor, borrower, kLease, 0, kMiB, 4096);
  donor.transport->SendRevoke(kLease, absl::Seconds(5));  // before there is anybody to hear it
  ASSERT_TRUE(OpenNow(borrower, spec).ok());
  ASSERT_TRUE(borrower.events.WaitFor([&] { return borrower.events.revoked.contains(kLease); }));
  EXPECT_GT(borrower.events.revoked[kLease], absl::ZeroDuration());
  EXPECT_LE(borrower.events.revoked[kLease], absl::Seconds(5));
  donor.transport->SendRevoke(kLease, absl::Milliseconds(50));
  ASSERT_TRUE(borrower.events.WaitFor([&] { return borrower.events.revoked[kLease] == absl::Milliseconds(50); }));
  borrower.transport->SendRenewal(kLease, 7);
  ASSERT_TRUE(donor.events.WaitFor([&] { return donor.events.renewals[kLease] == 1; }));
  EXPECT_EQ(donor.events.heats[kLease], 7);
  donor.transport->SendRenewed(kLease);
  ASSERT_TRUE(borrower.events.WaitFor([&] { return borrower.events.renewed[kLease] == 1; }));
}

TEST(ShmTransportTest, AReleaseEndsTheGrantAndNobodyIsReportedGone) {
  ShmFolder folder;
  Node donor(folder, {.name = "donor"}), borrower(folder, {.name = "borrower"});
  const LeaseView view = Lend(donor, borrower, kLease, 0, kMiB, 4096);
  donor.transport->SendRevoke(kLease, absl::ZeroDuration());  // which the borrower may leave unread
  borrower.transport->SendRelease(kLease);
  ASSERT_TRUE(donor.events.WaitFor([&] { return donor.events.released.contains(kLease); }));
  EXPECT_FALSE(view.Holds());
  borrower.transport->Close(kLease);
  donor.transport->Fence(kLease);  // nothing is left to do
  Lend(donor, borrower, LeaseId(8), 0, kMiB, 4096);
  donor.transport->Stop();
  borrower.transport->Stop();
  EXPECT_FALSE(donor.events.borrower_gone.contains(kLease));
  EXPECT_FALSE(borrower.events.donor_gone.contains(kLease));
}

TEST(ShmTransportTest, AFenceEndsStoresAndTellsTheBorrower) {
  ShmFolder folder;
  Node donor(folder, {.name = "donor"}), borrower(folder, {.name = "borrower"});
  const LeaseView view = Lend(donor, borrower, kLease, 0, kMiB, 4096);
  ASSERT_TRUE(view.Holds());
  donor.transport->Fence(kLease);
  EXPECT_FALSE(view.Holds());
  ASSERT_TRUE(borrower.events.WaitFor([&] { return borrower.events.donor_gone.contains(kLease); }));
  const std::vector<std::byte> block(4096, std::byte{1});
  EXPECT_EQ(borrower.events.Fate(borrower.Store(kLease, 0, block.data(), 4096)).code(), absl::StatusCode::kUnavailable);
  std::vector<std::byte> loaded(4096);
  const Ticket load = borrower.transport->Load({{kLease, 0, 4096, At(loaded.data())}}, {});
  EXPECT_EQ(borrower.transport->Await(load), std::vector{kLease});
  EXPECT_EQ(donor.arena.base()[0], std::byte{0});
}

TEST(ShmTransportTest, AWordThatComesBackNeverRepeatsAnEpoch) {
  ShmFolder folder;
  Node donor(folder, {.name = "donor"}), borrower(folder, {.name = "borrower"});
  const LeaseView first = Lend(donor, borrower, LeaseId(1), 0, kMiB, 4096);
  donor.transport->Fence(LeaseId(1));
  const LeaseView second = Lend(donor, borrower, LeaseId(2), 0, kMiB, 4096);
  EXPECT_TRUE(second.Holds());
  EXPECT_FALSE(first.Holds());
}

TEST(ShmTransportTest, GrantsOutsideTheArenaOrBetweenPagesOrTwiceAreRefused) {
  ShmFolder folder;
  Node donor(folder, {.name = "donor"});
  const auto grant = [&](int64_t offset, int64_t bytes) {
    return donor.transport
        ->Grant({.lease = kLease, .offset_bytes = offset, .bytes = bytes, .borrower_instance = "b", .capability = "c"})
        .status()
        .code();
  };
  EXPECT_EQ(grant(0, kArenaBytes + 4096), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(grant(4096, INT64_MAX / 4096 * 4096), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(grant(INT64_MAX / 4096 * 4096, 4096), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(grant(-4096, 8192), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(grant(100, 4096), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(grant(0, 0), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(grant(0, 4096), absl::StatusCode::kOk);
  EXPECT_EQ(grant(4096, 4096), absl::StatusCode::kAlreadyExists);
}

TEST(ShmTransportTest, MoreGrantsThanWordsAreRefusedAndAFenceMakesRoom) {
  ShmFolder folder;
  Node donor(folder, {.name = "donor"});
  const auto grant = [&](int64_t lease) {
    return donor.transport->Grant({.lease = LeaseId(lease), .bytes = 4096, .borrower_instance = "b", .capability = "c"})
        .status()
        .code();
  };
  for (int64_t lease = 0; lease < ShmGenerations::kWords; ++lease) ASSERT_EQ(grant(lease), absl::StatusCode::kOk);
  EXPECT_EQ(grant(ShmGenerations::kWords), absl::StatusCode::kResourceExhausted);
  donor.transport->Fence(LeaseId(0));
  EXPECT_EQ(grant(ShmGenerations::kWords), absl::StatusCode::kOk);
}

TEST(ShmTransportTest, StoresWaitForRoomInTheRingAndKeepTheirOrder) {
  ShmFolder folder;
  Node donor(folder, {.name = "donor"}), borrower(folder, {.name = "borrower"});
  Lend(donor, borrower, kLease, 0, kLeaseBytes, 200000);
  Lend(donor, borrower, LeaseId(8), 4 * kMiB, kLeaseBytes, 200000);
  std::mt19937 random(3);
  std::vector<std::vector<std::byte>> blocks;
  std::map<LeaseId, std::vector<Ticket>> wanted;
  std::map<Ticket, LeaseId> lease_of;
  for (int i = 0; i < 400; ++i) {  // all to the same place: the last of each lease stays
    blocks.push_back(Pattern(1 + random() % 200000, i));
    const LeaseId lease = i % 3 == 0 ? LeaseId(8) : kLease;
    const Ticket ticket = borrower.Store(lease, 5000, blocks.back().data(), blocks.back().size());
    wanted[lease].push_back(ticket);
    lease_of[ticket] = lease;
  }
  ASSERT_TRUE(borrower.events.WaitFor([&] { return borrower.events.stored.size() == 400; }));
  std::map<LeaseId, std::vector<Ticket>> stored;
  for (const auto& [ticket, status] : borrower.events.stored) {
    EXPECT_EQ(status, absl::OkStatus());
    stored[lease_of[ticket]].push_back(ticket);
  }
  EXPECT_EQ(stored, wanted);
  EXPECT_EQ(std::memcmp(donor.arena.base() + 5000, blocks[398].data(), blocks[398].size()), 0);
  EXPECT_EQ(std::memcmp(donor.arena.base() + 4 * kMiB + 5000, blocks[399].data(), blocks[399].size()), 0);
}

TEST(ShmTransportTest, StoresOfAnotherLeaseDoNotWaitBehindAFullRing) {
  ShmFolder folder;
  Node slow(folder, {.name = "slow"}), fast(folder, {.name = "fast"}), borrower(folder, {.name = "borrower"});
  Lend(slow, borrower, LeaseId(1), 0, kMiB, kMiB);
  Lend(fast, borrower, LeaseId(2), 0, kMiB, kMiB);
  const std::vector<std::byte> block = Pattern(kMiB, 1);
  auto hold = slow.events.Hold();
  borrower.transport->SendRenewal(LeaseId(1), 0);  // at which the slow one stands still
  // A few find room in staging memory, the others wait.
  for (int i = 0; i < 100; ++i) borrower.Store(LeaseId(1), 0, block.data(), kMiB);
  const Ticket quick = borrower.Store(LeaseId(2), 0, block.data(), kMiB);
  ASSERT_EQ(borrower.events.Fate(quick), absl::OkStatus());
  EXPECT_EQ(borrower.events.num_stored(), 1);
  hold.reset();
  EXPECT_TRUE(borrower.events.WaitFor([&] { return borrower.events.stored.size() == 101; }));
}

TEST(ShmTransportTest, ClosingForgetsStoresAndTellsNothingMore) {
  ShmFolder folder;
  Node donor(folder, {.name = "donor"}), borrower(folder, {.name = "borrower"});
  for (int i = 0; i < 50; ++i) {
    const LeaseId lease(100 + i);
    Lend(donor, borrower, lease, 0, kMiB, kMiB);
    std::vector<std::byte> block(kMiB, std::byte{1});
    for (int n = 0; n < 4; ++n) borrower.Store(lease, 0, block.data(), kMiB);
    borrower.transport->Close(lease);
    const size_t told = borrower.events.num_stored();
    block = {};
    ASSERT_TRUE(donor.events.WaitFor([&] { return donor.events.borrower_gone.contains(lease); }));
    ASSERT_EQ(borrower.events.num_stored(), told);
    donor.transport->Fence(lease);
  }
}

// Of a donor that stands still: its answers come in a minute.
TEST(ShmTransportTest, AbandoningAnswersStoresWithoutTheDonorAndWhatIsMappedStays) {
  ShmFolder folder;
  Node donor(folder, {.name = "donor"});
  Node borrower(folder, {.name = "borrower", .link_latency = absl::Minutes(1)});
  const LeaseView view = Lend(donor, borrower, kLease, 0, kMiB, kMiB);
  std::vector<std::byte> block(kMiB, std::byte{1});
  const Ticket in_ring = borrower.Store(kLease, 0, block.data(), kMiB);
  Ticket waiting;
  for (int n = 0; n < 8; ++n) waiting = borrower.Store(kLease, 0, block.data(), kMiB);
  borrower.transport->Abandon(kLease);
  EXPECT_EQ(borrower.events.Fate(in_ring).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(borrower.events.Fate(waiting).code(), absl::StatusCode::kUnavailable);
  const Ticket late = borrower.Store(kLease, 0, block.data(), kMiB);
  EXPECT_EQ(borrower.events.Fate(late).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(BytesAt(view.base)[0], std::byte{0});
  EXPECT_TRUE(view.Holds());
  borrower.transport->Close(kLease);
  EXPECT_TRUE(donor.events.WaitFor([&] { return donor.events.borrower_gone.contains(kLease); }));
}

// A donor takes its memory back and writes other things there, again and again, while it is stored to, loaded and read
// in place: whatever a reader believes is what the lease's borrower stored.
TEST(ShmTransportTest, WhatHoldsIsNeverWrongWhileDonorsFence) {
  constexpr int kRounds = 3000;
  constexpr int64_t kBytes = 64 * kKiB;
  ShmFolder folder;
  Node donor(folder, {.name = "donor"}), borrower(folder, {.name = "borrower"});
  std::mt19937_64 random(11);
  int64_t believed = 0, doubted = 0, loads_lost = 0, stores_lost = 0;
  std::vector<std::byte> block(kBytes), loaded(kBytes);
  for (int round = 0; round < kRounds; ++round) {
    const LeaseId lease(round + 1);
    const LeaseView view = Lend(donor, borrower, lease, kLeaseOffset, kBytes, kBytes);
    const std::byte mine{static_cast<unsigned char>(1 + round % 250)};
    std::fill(block.begin(), block.end(), mine);
    const Ticket stored = borrower.Store(lease, 0, block.data(), kBytes);
    std::atomic<bool> go = false;
    const uint64_t delay = random() % 300000;  // about a store, a few reads and a load
    std::thread owner([&] {
      while (!go) std::this_thread::yield();
      for (uint64_t i = 0; i < delay; ++i) std::atomic_signal_fence(std::memory_order_seq_cst);
      donor.transport->Fence(lease);
      std::memset(donor.arena.base() + kLeaseOffset, 0xff, kBytes);
    });
    go = true;
    const absl::Status fate = borrower.events.Fate(stored);
    if (fate.ok()) {
      for (int pass = 0; pass < 4; ++pass) {
        const bool right =
            std::all_of(BytesAt(view.base), BytesAt(view.base) + kBytes, [&](std::byte b) { return b == mine; });
        if (!view.Holds()) {
          ++doubted;
          break;
        }
        ASSERT_TRUE(right) << "round " << round << " pass " << pass;
        ++believed;
      }
      const Ticket load = borrower.transport->Load({{lease, 0, kBytes, At(loaded.data())}}, {});
      if (borrower.transport->Await(load).empty()) {
        ASSERT_EQ(loaded, block) << "round " << round;
      } else {
        ++loads_lost;
      }
    } else {
      ASSERT_TRUE(fate.code() == absl::StatusCode::kFailedPrecondition || absl::IsUnavailable(fate)) << fate;
      ++stores_lost;
    }
    owner.join();
    ASSERT_EQ(donor.arena.base()[kLeaseOffset], std::byte{0xff});
    ASSERT_EQ(donor.arena.base()[kLeaseOffset + kBytes - 1], std::byte{0xff});
    borrower.transport->Close(lease);
    borrower.events.ForgetStored();
  }
  std::cout << believed << " reads believed, " << doubted << " doubted, " << loads_lost << " loads and " << stores_lost
            << " stores lost\n";
  EXPECT_GT(believed, 0);
  EXPECT_GT(doubted + loads_lost, 0);
  EXPECT_GT(stores_lost, 0);
}

TEST(ShmTransportTest, ADonorsEndIsHeardAndItsMemoryStaysReadableUntilClosed) {
  ShmFolder folder;
  Node borrower(folder, {.name = "borrower"});
  const std::vector<std::byte> block = Pattern(4096, 5);
  LeaseView view;
  {
    Node donor(folder, {.name = "donor"});
    view = Lend(donor, borrower, kLease, 0, kMiB, 4096);
    ASSERT_EQ(borrower.events.Fate(borrower.Store(kLease, 0, block.data(), 4096)), absl::OkStatus());
  }
  ASSERT_TRUE(borrower.events.WaitFor([&] { return borrower.events.donor_gone.contains(kLease); }));
  EXPECT_EQ(std::memcmp(BytesAt(view.base), block.data(), 4096), 0);
  EXPECT_FALSE(view.Holds());
  borrower.transport->Close(kLease);
}

TEST(ShmTransportTest, ABorrowersEndIsHeardAndTheLeaseCanBeOpenedAgain) {
  ShmFolder folder;
  Node donor(folder, {.name = "donor"});
  OpenSpec spec;
  {
    Node borrower(folder, {.name = "borrower"});
    spec = Granted(donor, borrower, kLease, 0, kMiB, 4096);
    ASSERT_TRUE(OpenNow(borrower, spec).ok());
  }
  ASSERT_TRUE(donor.events.WaitFor([&] { return donor.events.borrower_gone.contains(kLease); }));
  Node again(folder, {.name = "borrower"});
  EXPECT_TRUE(OpenNow(again, spec).ok());
}

// Never more than the link carries; less only as far as the machine is busy with other things.
MATCHER(AboutTheLink, "") { return arg > 8e6 && arg < 115e6; }  // a busy machine takes its time

TEST(ShmTransportTest, AThrottledLinkCarriesItsRate) {
  ShmFolder folder;
  Node donor(folder, {.name = "donor"}), borrower(folder, {.name = "borrower", .link_gbps = 0.8});
  Lend(donor, borrower, kLease, 0, kLeaseBytes, kMiB);
  const std::vector<std::byte> block = Pattern(kMiB, 1);
  // 0.8 Gbit/s are 100 MB/s: 20 MiB take 0.21 s.
  const absl::Time start = borrower.clock.Now();
  Ticket last;
  for (int i = 0; i < 20; ++i) last = borrower.Store(kLease, 0, block.data(), kMiB);
  ASSERT_EQ(borrower.events.Fate(last), absl::OkStatus());
  const double store_rate = 20 * kMiB / absl::ToDoubleSeconds(borrower.clock.Now() - start);
  EXPECT_THAT(store_rate, AboutTheLink());
  std::vector<std::byte> loaded(20 * kMiB);  // several threads may copy at once
  const absl::Time load_start = borrower.clock.Now();
  std::vector<Ticket> loads;
  for (int i = 0; i < 20; ++i) {
    loads.push_back(borrower.transport->Load({{kLease, 0, kMiB, At(loaded.data() + i * kMiB)}}, {}));
  }
  for (const Ticket load : loads) EXPECT_TRUE(borrower.transport->Await(load).empty());
  EXPECT_THAT(20 * kMiB / absl::ToDoubleSeconds(borrower.clock.Now() - load_start), AboutTheLink());
  EXPECT_THAT(20 * kMiB / absl::ToDoubleSeconds(borrower.transport->stats().load_time), AboutTheLink());
  EXPECT_THAT(20 * kMiB / absl::ToDoubleSeconds(borrower.transport->stats().store_time), AboutTheLink());
}

TEST(ShmTransportTest, LatenciesOverlap) {
  constexpr absl::Duration kLatency = absl::Milliseconds(100);
  ShmFolder folder;
  Node donor(folder, {.name = "donor"}), borrower(folder, {.name = "borrower", .link_latency = kLatency});
  Lend(donor, borrower, kLease, 0, kLeaseBytes, 4096);
  std::vector<std::byte> loaded(100 * 4096);
  const absl::Time start = borrower.clock.Now();
  std::vector<Ticket> loads;
  for (int i = 0; i < 100; ++i) {
    loads.push_back(borrower.transport->Load({{kLease, 0, 4096, At(loaded.data() + i * 4096)}}, {}));
  }
  for (const Ticket load : loads) EXPECT_TRUE(borrower.transport->Await(load).empty());
  EXPECT_GE(borrower.clock.Now() - start, kLatency);
  EXPECT_LT(borrower.clock.Now() - start, 99 * kLatency);  // one after the other: ten seconds
}

TEST(ShmTransportTest, NothingIsLeftAtTheEnd) {
  ShmFolder folder;
  const int64_t before = OpenDescriptors();
  {
    Node donor(folder, {.name = "a/donor"}), borrower(folder, {.name = "borrower"});
    EXPECT_EQ(donor.transport->channel(), folder.path() + "/a%2Fdonor.sock");
    Lend(donor, borrower, kLease, 0, kMiB, 4096);
    EXPECT_TRUE(std::filesystem::is_socket(donor.transport->channel()));
  }
  EXPECT_EQ(OpenDescriptors(), before);
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

}  // namespace
}  // namespace swiftcache::engine::transport
