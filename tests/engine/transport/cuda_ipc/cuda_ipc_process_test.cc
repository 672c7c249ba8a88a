// SPDX-License-Identifier: Apache-2.0
// Engines in processes of their own, which are killed. What they shared lives as long as anybody has it mapped.
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <vector>

#include "absl/time/clock.h"
#include "engine/transport/cuda_ipc/cuda_ipc_transport.h"
#include "tests/engine/transport/cuda_ipc/cuda_ipc_harness.h"
#include "tests/engine/transport/other_process.h"

namespace swiftcache::engine::transport::cuda_ipc {
namespace {

const GrantSpec kGrant = {.lease = kLease,
                          .offset_bytes = kLent,
                          .bytes = kLentBytes,
                          .borrower_instance = "borrower-instance",
                          .capability = kCapability};

OpenSpec OpenOf(const ShmFolder& folder) {
  return {.lease = kLease,
          .channel = ShmSocketPath(folder.path(), "donor"),
          .capability = kCapability,
          .bytes = kLentBytes,
          .epoch = kv::Epoch(1),
          .store_bytes = kStoreBytes};
}

TEST(CudaIpcProcessTest, AKilledDonorIsHeardAtOnceAndWhatItLentIsThereUntilItIsClosed) {
  ShmFolder folder;
  const std::vector<std::byte> block = Pattern(kStoreBytes, 5);
  OtherProcess other([&] {
    auto* donor = new CudaNode(folder, {.name = "donor"});
    (void)donor->transport->Grant(kGrant);
    donor->Write(kLent, block);
    std::filesystem::create_directory(folder.path() + "/granted");
  });
  ASSERT_TRUE(WaitForFile(folder.path() + "/granted"));
  CudaNode borrower(folder, {.name = "borrower"});
  const auto view = OpenNow(borrower, OpenOf(folder));
  ASSERT_TRUE(view.ok()) << view.status();
  borrower.driver.Pause();
  const Ticket load = borrower.transport->Load({{kLease, 0, kStoreBytes, borrower.At(0)}}, {});
  const absl::Time start = absl::Now();
  other.Kill();
  ASSERT_TRUE(borrower.events.WaitFor([&] { return borrower.events.donor_gone.contains(kLease); }));
  EXPECT_LT(absl::Now() - start, absl::Seconds(5));
  borrower.driver.Resume();
  EXPECT_TRUE(borrower.transport->Await(load).empty());  // nobody was there to change the word, or the bytes
  EXPECT_TRUE(borrower.Has(0, block));
  borrower.transport->Close(kLease);
  EndCleanly(borrower);
}

TEST(CudaIpcProcessTest, ABorrowerThatIsKilledWhileItsStoreIsPulledHarmsNobody) {
  ShmFolder folder;
  OtherProcess other([&] {
    WaitForFile(folder.path() + "/granted");
    auto* borrower = new CudaNode(folder, {.name = "borrower"});
    (void)OpenNow(*borrower, OpenOf(folder));
    (void)borrower->Store(kLease, 0, 0, kStoreBytes);
  });
  CudaNode donor(folder, {.name = "donor"});
  std::memset(donor.Bytes(kLent), 0xff, kLentBytes);
  donor.driver.Pause();
  ASSERT_TRUE(donor.transport->Grant(kGrant).ok());
  std::filesystem::create_directory(folder.path() + "/granted");
  const absl::Time deadline = absl::Now() + absl::Seconds(20);
  while (donor.driver.unfinished_copies() == 0 && absl::Now() < deadline) absl::SleepFor(absl::Milliseconds(1));
  EXPECT_EQ(donor.driver.unfinished_copies(), 1);
  const absl::Time start = absl::Now();
  other.Kill();
  ASSERT_TRUE(donor.events.WaitFor([&] { return donor.events.borrower_gone.contains(kLease); }));
  EXPECT_LT(absl::Now() - start, absl::Seconds(5));
  donor.driver.Resume();
  donor.transport->Fence(kLease);
  EXPECT_EQ(donor.driver.unfinished_copies(), 0);
  EXPECT_TRUE(backend::cuda::AllAre(donor.Bytes(kLent), kStoreBytes, std::byte{0}));  // its store came in
  EXPECT_TRUE(backend::cuda::AllAre(donor.Bytes(kLent + kStoreBytes), kLentBytes - kStoreBytes, std::byte{0xff}));
  EndCleanly(donor);
}

}  // namespace
}  // namespace swiftcache::engine::transport::cuda_ipc
