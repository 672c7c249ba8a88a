// SPDX-License-Identifier: Apache-2.0
#include "engine/transport/cuda_ipc/cuda_ipc_transport.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <optional>
#include <random>
#include <thread>

#include "absl/time/clock.h"
#include "engine/backend/cuda/copy_lane.h"
#include "engine/transport/cuda_ipc/link_meter.h"
#include "tests/engine/transport/cuda_ipc/cuda_ipc_harness.h"
#include "tests/fakes/fake_clock.h"
#include "tests/fakes/random_seed.h"

namespace swiftcache::engine::transport::cuda_ipc {
namespace {

using kv::LeaseId;

TEST(CudaIpcTransportTest, WhatIsStoredLiesInTheDonorsArenaAndIsLoadedFromThere) {
  ShmFolder folder;
  const int64_t before = OpenDescriptors();
  {
    CudaNode donor(folder, {.name = "donor"}), borrower(folder, {.name = "borrower"});
    EXPECT_STREQ(donor.transport->kind(), "cuda_ipc");
    EXPECT_TRUE(donor.transport->maps());
    const LeaseView view = Lend(donor, borrower, kLease, kLent, kLentBytes, kStoreBytes);
    const std::vector<std::byte> block = Pattern(kStoreBytes, 1);
    borrower.Write(0, block);
    // From the first chunk into the second.
    const int64_t at = 33 * kUnit - kLent - 8 * kKiB;
    EXPECT_EQ(borrower.events.Fate(borrower.Store(kLease, at, 0, kStoreBytes)), absl::OkStatus());
    EXPECT_TRUE(donor.Has(kLent + at, block));
    EXPECT_EQ(std::memcmp(FakeCudaDriver::Host(view.base + at), block.data(), kStoreBytes), 0);
    EXPECT_TRUE(view.Holds());

    const uint64_t read = donor.transport->stats().borrowers_read;
    EXPECT_TRUE(borrower.LoadNow(kLease, at, kStoreBytes, kUnit).empty());
    EXPECT_TRUE(borrower.Has(kUnit, block));
    EXPECT_EQ(borrower.transport->stats().loaded_bytes, kStoreBytes);
    EXPECT_EQ(borrower.transport->stats().stored_bytes, kStoreBytes);
    EXPECT_EQ(donor.transport->stats().received_bytes, kStoreBytes);
    EXPECT_NE(donor.transport->stats().borrowers_read, read);
    borrower.transport->Close(kLease);
    EndCleanly(borrower);
    EndCleanly(donor);
  }
  EXPECT_EQ(OpenDescriptors(), before);
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(CudaIpcTransportTest, WhereLinksAreMeasuredTheViewOfALeaseSaysOfASlowOneThatItIs) {
  constexpr int64_t kLarge = 24 * kUnit;  // enough to measure
  ShmFolder folder;
  FakeClock clock;  // which copies move, and no other load of this machine
  std::atomic<double> gigabytes_a_second = 400;
  std::atomic<uint64_t> arena = 0;
  std::atomic<int> copies = 0, of_arena = 0;
  const auto hold_up = [&](const backend::cuda::DeviceCopy& copy) {
    for (const uint64_t address : {copy.from, copy.to}) {
      if (arena <= address && address < arena + CudaNode::kArenaUnits * kUnit) ++of_arena;
    }
    ++copies;
    clock.Advance(absl::Nanoseconds(static_cast<double>(copy.bytes) / gigabytes_a_second));
  };
  CudaNode borrower(folder, {.name = "borrower", .measures_links = true, .on_copy = hold_up, .clock = &clock});
  arena = backend::cuda::ToNumber(borrower.arena->base());
  CudaNode near(folder, {.name = "near"}), far(folder, {.name = "far"});
  EXPECT_TRUE(borrower.transport->measures_links());
  EXPECT_FALSE(near.transport->measures_links());
  EXPECT_FALSE(Lend(near, borrower, LeaseId(1), kLent, kLarge, kStoreBytes).slow_link);
  gigabytes_a_second = 50;
  EXPECT_TRUE(Lend(far, borrower, LeaseId(2), kLent, kLarge, kStoreBytes).slow_link);
  EXPECT_FALSE(Lend(borrower, near, LeaseId(3), kLent, kLarge, kStoreBytes).slow_link) << "who measures nothing";
  EXPECT_EQ(copies, 4 * LinkMeter::kTries);
  EXPECT_EQ(of_arena, 0) << "other memory may just be laid into the place of what was lent";
}

TEST(CudaIpcTransportTest, TheRateOfReadsIsMeasuredAndIsThatInPlaceToo) {
  ShmFolder folder;
  CudaNode donor(folder, {.name = "donor"}), borrower(folder, {.name = "borrower"});
  (void)Lend(donor, borrower, kLease, kLent, kLentBytes, kStoreBytes);
  EXPECT_EQ(borrower.transport->read_rate(/*in_place=*/true), std::nullopt);
  const LoadPiece piece{kLease, 0, kLentBytes, borrower.At(kUnit)};
  for (int64_t i = 0; i < LoadRate::kLeastLoads; ++i) {
    const Ticket load = borrower.transport->Load(std::vector(LoadRate::kLeastBytes / kLentBytes, piece), {});
    EXPECT_TRUE(borrower.transport->Await(load).empty());
  }
  EXPECT_GT(borrower.transport->read_rate(/*in_place=*/true).value(), 0);
  EXPECT_EQ(borrower.transport->read_rate(true), borrower.transport->read_rate(false));
  borrower.transport->Close(kLease);
  EndCleanly(borrower);
  EndCleanly(donor);
}

TEST(CudaIpcTransportTest, WhatABorrowerMapsItCannotWrite) {
  ShmFolder folder;
  CudaNode donor(folder, {.name = "donor"}), borrower(folder, {.name = "borrower"});
  const LeaseView view = Lend(donor, borrower, kLease, kLent, kLentBytes, kStoreBytes);
  backend::cuda::CopyLane lane(borrower.driver);
  ASSERT_TRUE(lane.Run({.runs = {{.to = backend::cuda::ToNumber(view.base),
                                  .from = backend::cuda::ToNumber(borrower.At(0)),
                                  .bytes = 8}}},
                       {})
                  .ok());
  EXPECT_EQ(borrower.driver.Misuse(), "a copy reads or writes where nothing is mapped so\n");
}

// Of the lease's bytes 33 to 40 units of the arena's 3-unit chunks are lent, of which those from 33 to 39 are whole chunks.
TEST(CudaIpcTransportTest, WithRemapOnReturnABorrowerSeesNothingMoreOfWholeChunks) {
  for (const bool remaps : {false, true}) {
    ShmFolder folder;
    CudaNode donor(folder, {.name = "donor", .remaps = remaps}), borrower(folder, {.name = "borrower"});
    const LeaseView view = Lend(donor, borrower, kLease, kLent, kLentBytes, kStoreBytes);
    const std::vector<std::byte> lent = Pattern(kStoreBytes, 1), next = Pattern(kStoreBytes, 2);
    borrower.Write(0, lent);
    const int64_t at = 36 * kUnit - kLent;
    ASSERT_EQ(borrower.events.Fate(borrower.Store(kLease, at, 0, kStoreBytes)), absl::OkStatus());
    donor.transport->Fence(kLease);
    EXPECT_FALSE(view.Holds());
    EXPECT_EQ(donor.transport->exchanges(), remaps);
    if (remaps) {
      EXPECT_EQ(donor.transport->Exchange(kLent, kLentBytes), absl::OkStatus());
    }
    EXPECT_EQ(donor.Has(kLent + at, lent), !remaps);  // other memory is zeroed
    donor.Write(kLent + at, next);
    const std::byte* const seen = FakeCudaDriver::Host(view.base + at);
    EXPECT_EQ(std::memcmp(seen, next.data(), next.size()) == 0, !remaps);
    EXPECT_EQ(std::memcmp(seen, lent.data(), lent.size()) == 0, remaps);
    borrower.transport->Close(kLease);
    const LeaseView again = Lend(donor, borrower, kv::LeaseId(2), kLent, kLentBytes, kStoreBytes);
    EXPECT_EQ(std::memcmp(FakeCudaDriver::Host(again.base + at), next.data(), next.size()), 0);  // of the new memory
    borrower.transport->Close(kv::LeaseId(2));
    EndCleanly(borrower);
    EndCleanly(donor);
  }
}

// Whichever call fails: without memory the old stays mapped, and a chunk that was unmapped may have none at all.
TEST(CudaIpcTransportTest, WhatGotNoOtherMemoryIsSaidSoAndGetsItWhenItIsTriedAgain) {
  constexpr int64_t kFirst = 33 * kUnit, kSecond = 36 * kUnit;  // the whole chunks of what is lent
  int refused = 0, half = 0;
  bool failed = true;
  for (int64_t nth = 1; failed; ++nth) {
    SCOPED_TRACE(testing::Message() << "call " << nth);
    ShmFolder folder;
    CudaNode donor(folder, {.name = "donor", .remaps = true}), borrower(folder, {.name = "borrower"});
    const LeaseView view = Lend(donor, borrower, kLease, kLent, kLentBytes, kStoreBytes);
    std::memset(donor.Bytes(kFirst), 5, 6 * kUnit);
    donor.transport->Fence(kLease);
    donor.driver.FailAt(nth);
    const absl::Status exchanged = donor.transport->Exchange(kLent, kLentBytes);
    failed = donor.driver.HasFailed();
    donor.driver.FailAt(0);
    EXPECT_TRUE(failed || exchanged.ok()) << exchanged;
    if (!exchanged.ok()) {
      ++refused;
      EXPECT_TRUE(absl::IsInternal(exchanged) || absl::IsDataLoss(exchanged)) << exchanged;
      const bool first_is_done = donor.arena->Export(11).ok() && *donor.Bytes(kFirst) == std::byte{0};
      if (first_is_done) *donor.Bytes(kFirst) = std::byte{7};
      EXPECT_EQ(donor.transport->Exchange(kLent, kLentBytes), absl::OkStatus());
      if (first_is_done && *donor.Bytes(kFirst) == std::byte{7}) ++half;
      *donor.Bytes(kFirst) = std::byte{0};
    }
    EXPECT_TRUE(backend::cuda::AllAre(donor.Bytes(kFirst), 6 * kUnit, std::byte{0}));
    EXPECT_TRUE(backend::cuda::AllAre(FakeCudaDriver::Host(view.base + (kSecond - kLent)), kUnit, std::byte{5}));
    borrower.transport->Close(kLease);
    EndCleanly(borrower);
    EndCleanly(donor);
  }
  EXPECT_GE(refused, 10);
  EXPECT_GT(half, 0) << "the first chunk keeps its memory when the second is tried again";
}

TEST(CudaIpcTransportTest, RenewalsRevocationsAndReleasesCrossTheChannel) {
  ShmFolder folder;
  CudaNode donor(folder, {.name = "donor"}), borrower(folder, {.name = "borrower"});
  const LeaseView view = Lend(donor, borrower, kLease, kLent, kLentBytes, kStoreBytes);
  borrower.transport->SendRenewal(kLease, 7);
  ASSERT_TRUE(donor.events.WaitFor([&] { return donor.events.renewals[kLease] == 1; }));
  EXPECT_EQ(donor.events.heats[kLease], 7);
  donor.transport->SendRenewed(kLease);
  donor.transport->SendRevoke(kLease, absl::Milliseconds(50));
  ASSERT_TRUE(borrower.events.WaitFor([&] { return borrower.events.revoked.contains(kLease); }));
  borrower.transport->SendRelease(kLease);
  ASSERT_TRUE(donor.events.WaitFor([&] { return donor.events.released.contains(kLease); }));
  EXPECT_FALSE(view.Holds());
  borrower.transport->Close(kLease);
  EndCleanly(borrower);
  EndCleanly(donor);
}

TEST(CudaIpcTransportTest, EnginesOfOtherKindsAreRefused) {
  ShmFolder folder;
  CudaNode gpu(folder, {.name = "gpu"});
  Node cpu(folder, {.name = "cpu"});
  for (const bool gpu_lends : {true, false}) {
    auto& lender = gpu_lends ? *gpu.transport : static_cast<Transport&>(*cpu.transport);
    auto& borrower = gpu_lends ? static_cast<Transport&>(*cpu.transport) : *gpu.transport;
    auto& events = gpu_lends ? cpu.events : gpu.events;
    const auto epoch = lender.Grant({.lease = kLease,
                                     .offset_bytes = 0,
                                     .bytes = kUnit,
                                     .borrower_instance = gpu_lends ? cpu.instance : gpu.instance,
                                     .capability = kCapability});
    ASSERT_TRUE(epoch.ok());
    borrower.Open({.lease = kLease,
                   .channel = lender.channel(),
                   .capability = kCapability,
                   .bytes = kUnit,
                   .epoch = *epoch,
                   .store_bytes = 4096});
    EXPECT_EQ(events.Opening(kLease).status().code(), absl::StatusCode::kUnavailable);
    borrower.Close(kLease);
    lender.Fence(kLease);
  }
  EndCleanly(gpu);
}

// The borrower's device reads on, and it harms nobody.
TEST(CudaIpcTransportTest, AFenceDoesNotWaitForLoadsAndNothingOfThemIsBelieved) {
  ShmFolder folder;
  CudaNode donor(folder, {.name = "donor"}), borrower(folder, {.name = "borrower"});
  const LeaseView view = Lend(donor, borrower, kLease, kLent, kLentBytes, kStoreBytes);
  borrower.driver.Pause();
  const Ticket load = borrower.transport->Load({{kLease, 0, kLentBytes, borrower.At(0)}}, {});
  EXPECT_EQ(borrower.driver.unfinished_copies(), 1);
  donor.transport->Fence(kLease);
  EXPECT_FALSE(view.Holds());
  std::memset(donor.Bytes(kLent), 0xff, kLentBytes);
  EXPECT_EQ(borrower.driver.unfinished_copies(), 1);
  borrower.transport->Close(kLease);  // unmapped when the device is done
  borrower.driver.Resume();
  EXPECT_THAT(borrower.transport->Await(load), testing::ElementsAre(kLease));
  EndCleanly(borrower);
  EndCleanly(donor);
}

TEST(CudaIpcTransportTest, AFenceChangesTheWordThenWaitsForTheDonorsOwnPull) {
  ShmFolder folder;
  CudaNode donor(folder, {.name = "donor"}), borrower(folder, {.name = "borrower"});
  const LeaseView view = Lend(donor, borrower, kLease, kLent, kLentBytes, kStoreBytes);
  std::memset(borrower.Bytes(0), 1, kStoreBytes);
  donor.driver.Pause();
  const Ticket stored = borrower.Store(kLease, 0, 0, kStoreBytes);
  while (donor.driver.unfinished_copies() == 0) std::this_thread::yield();
  std::atomic<bool> fenced = false;
  std::thread owner([&] {
    donor.transport->Fence(kLease);
    fenced = true;
    std::memset(donor.Bytes(kLent), 0xff, kLentBytes);
  });
  while (view.Holds()) std::this_thread::yield();
  EXPECT_FALSE(fenced);
  donor.driver.Resume();
  owner.join();
  (void)borrower.events.Fate(stored);  // it may have been in before the channel closed; the word says what it is worth
  EXPECT_THAT(borrower.LoadNow(kLease, 0, kStoreBytes, kUnit), testing::ElementsAre(kLease));
  EXPECT_TRUE(backend::cuda::AllAre(donor.Bytes(kLent), kLentBytes, std::byte{0xff}));
  EXPECT_EQ(donor.driver.unfinished_copies(), 0);
  borrower.transport->Close(kLease);
  EndCleanly(borrower);
  EndCleanly(donor);
}

TEST(CudaIpcTransportTest, ADeadDonorsMemoryStaysUntilClosedAndItsSuccessorIsNeverReadThroughIt) {
  ShmFolder folder;
  CudaNode borrower(folder, {.name = "borrower"});
  std::optional<CudaNode> donor(std::in_place, folder, CudaNode::Options{.name = "donor"});
  const LeaseView view = Lend(*donor, borrower, kLease, kLent, kLentBytes, kStoreBytes);
  std::memset(donor->Bytes(kLent), 5, kLentBytes);
  EndCleanly(*donor);
  donor.emplace(folder, CudaNode::Options{.name = "donor"});
  std::memset(donor->Bytes(kLent), 6, kLentBytes);
  ASSERT_TRUE(borrower.events.WaitFor([&] { return borrower.events.donor_gone.contains(kLease); }));
  EXPECT_EQ(*FakeCudaDriver::Host(view.base), std::byte{5});
  EXPECT_FALSE(view.Holds());
  EXPECT_THAT(borrower.LoadNow(kLease, 0, kStoreBytes, 0), testing::ElementsAre(kLease));
  borrower.transport->Close(kLease);

  const LeaseView again = Lend(*donor, borrower, kLease, kLent, kLentBytes, kStoreBytes);
  EXPECT_EQ(*FakeCudaDriver::Host(again.base), std::byte{6});
  EXPECT_TRUE(borrower.LoadNow(kLease, 0, kStoreBytes, 0).empty());
  EXPECT_TRUE(backend::cuda::AllAre(borrower.Bytes(0), kStoreBytes, std::byte{6}));
  borrower.transport->Close(kLease);
  EndCleanly(borrower);
  EndCleanly(*donor);
}

TEST(CudaIpcTransportTest, ARemappedChunkIsTheOwnersAloneAndIsLentAgain) {
  ShmFolder folder;
  CudaNode donor(folder, {.name = "donor"}), borrower(folder, {.name = "borrower"});
  const int64_t chunk = 3 * kUnit, at = 11 * chunk;
  const LeaseView view = Lend(donor, borrower, kLease, at, chunk, kStoreBytes);
  std::memset(donor.Bytes(at), 5, chunk);
  donor.transport->Fence(kLease);
  ASSERT_TRUE(donor.arena->Remap(11).ok());
  std::memset(donor.Bytes(at), 6, chunk);
  EXPECT_TRUE(backend::cuda::AllAre(FakeCudaDriver::Host(view.base), chunk, std::byte{5}));
  EXPECT_TRUE(backend::cuda::AllAre(donor.Bytes(at - chunk), chunk, std::byte{0}));
  borrower.transport->Close(kLease);
  const LeaseView again = Lend(donor, borrower, LeaseId(8), at, chunk, kStoreBytes);
  EXPECT_TRUE(backend::cuda::AllAre(FakeCudaDriver::Host(again.base), chunk, std::byte{6}));
  borrower.transport->Close(LeaseId(8));
  EndCleanly(borrower);
  EndCleanly(donor);
}

// A donor takes its memory back and writes other things there, again and again, while it is stored to and loaded:
// whatever a borrower believes is what it stored, and nothing is written to the owner's memory any more.
TEST(CudaIpcTransportTest, WhatIsBelievedIsNeverWrongWhileDonorsFence) {
  constexpr int kRounds = 400;
  const uint32_t seed = RandomSeed();
  std::mt19937 random(seed);
  ShmFolder folder;
  CudaNode donor(folder, {.name = "donor", .seed = seed}), borrower(folder, {.name = "borrower", .seed = seed + 1});
  int believed = 0, loads_lost = 0, stores_lost = 0;
  for (int round = 0; round < kRounds; ++round) {
    const LeaseId lease(round + 1);
    (void)Lend(donor, borrower, lease, kLent, kUnit, kUnit);
    const std::vector<std::byte> block(kUnit, static_cast<std::byte>(1 + round % 250));
    borrower.Write(0, block);
    std::thread owner([&, delay = absl::Microseconds(random() % 4 == 0 ? 0 : random() % 1500)] {
      absl::SleepFor(delay);
      donor.transport->Fence(lease);
      std::memset(donor.Bytes(kLent), 0xff, kUnit);
    });
    const Ticket stored = borrower.Store(lease, 0, 0, kUnit);
    if (borrower.events.Fate(stored).ok()) {
      for (int pass = 0; pass < 4; ++pass) {
        std::memset(borrower.Bytes(kUnit), 0, kUnit);
        if (borrower.LoadNow(lease, 0, kUnit, kUnit).empty()) {
          ASSERT_TRUE(borrower.Has(kUnit, block)) << "round " << round;
          ++believed;
        } else {
          ++loads_lost;
        }
      }
    } else {
      ++stores_lost;
    }
    owner.join();
    borrower.transport->Close(lease);
    borrower.events.ForgetStored();
    ASSERT_TRUE(backend::cuda::AllAre(donor.Bytes(kLent), kUnit, std::byte{0xff})) << "round " << round;
  }
  std::cout << believed << " loads believed, " << loads_lost << " loads and " << stores_lost << " stores lost\n";
  EXPECT_GT(believed, 0);
  EXPECT_GT(loads_lost, 0);
  EXPECT_GT(stores_lost, 0);
  EndCleanly(borrower);
  EndCleanly(donor);
}

}  // namespace
}  // namespace swiftcache::engine::transport::cuda_ipc
