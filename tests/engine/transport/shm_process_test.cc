// SPDX-License-Identifier: Apache-2.0
// Engines in processes of their own, which are killed.
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "tests/engine/transport/other_process.h"
#include "tests/engine/transport/test_lease.h"
#include "tests/engine/transport/transport_harness.h"

namespace swiftcache::engine::transport {
namespace {

using kv::LeaseId;

TEST(ShmTransportProcessTest, KillingADonorIsHeardAtOnceAndItsSocketIsReplaced) {
  ShmFolder folder;
  const OpenSpec spec = {.lease = kLease,
                         .channel = ShmSocketPath(folder.path(), "donor"),
                         .capability = kCapability,
                         .bytes = kMiB,
                         .epoch = kv::Epoch(1),
                         .store_bytes = 4096};
  OtherProcess other([&] {
    auto* donor = new Node(folder, {.name = "donor"});
    (void)donor->transport->Grant(
        {.lease = kLease, .bytes = kMiB, .borrower_instance = "borrower-instance", .capability = kCapability});
    std::filesystem::create_directory(folder.path() + "/granted");
  });
  ASSERT_TRUE(WaitForFile(folder.path() + "/granted"));
  Node borrower(folder, {.name = "borrower"});
  auto view = OpenNow(borrower, spec);
  ASSERT_TRUE(view.ok()) << view.status();
  const std::vector<std::byte> block = Pattern(4096, 5);
  ASSERT_EQ(borrower.events.Fate(borrower.Store(kLease, 0, block.data(), 4096)), absl::OkStatus());
  const absl::Time start = absl::Now();
  other.Kill();
  ASSERT_TRUE(borrower.events.WaitFor([&] { return borrower.events.donor_gone.contains(kLease); }));
  EXPECT_LT(absl::Now() - start, absl::Seconds(5));
  EXPECT_EQ(std::memcmp(BytesAt(view->base), block.data(), 4096), 0);
  borrower.transport->Close(kLease);
  Node donor(folder, {.name = "donor"});
  Lend(donor, borrower, LeaseId(8), 0, kMiB, 4096);
}

TEST(ShmTransportProcessTest, KillingABorrowerIsHeardAtOnce) {
  ShmFolder folder;
  OtherProcess other([&] {
    WaitForFile(folder.path() + "/granted");
    auto* borrower = new Node(folder, {.name = "borrower"});
    borrower->transport->Open({.lease = kLease,
                               .channel = ShmSocketPath(folder.path(), "donor"),
                               .capability = kCapability,
                               .bytes = kMiB,
                               .epoch = kv::Epoch(1),
                               .store_bytes = 4096});
  });
  Node donor(folder, {.name = "donor"});
  ASSERT_TRUE(
      donor.transport
          ->Grant({.lease = kLease, .bytes = kMiB, .borrower_instance = "borrower-instance", .capability = kCapability})
          .ok());
  std::filesystem::create_directory(folder.path() + "/granted");
  ASSERT_TRUE(donor.events.WaitFor([&] { return donor.events.borrower_opened.contains(kLease); }));
  const absl::Time start = absl::Now();
  other.Kill();
  ASSERT_TRUE(donor.events.WaitFor([&] { return donor.events.borrower_gone.contains(kLease); }));
  EXPECT_LT(absl::Now() - start, absl::Seconds(5));
}

}  // namespace
}  // namespace swiftcache::engine::transport
