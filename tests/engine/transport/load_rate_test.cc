// SPDX-License-Identifier: Apache-2.0
#include "engine/transport/load_rate.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "tests/engine/transport/test_lease.h"
#include "tests/engine/transport/transport_harness.h"

namespace swiftcache::engine::transport {
namespace {

constexpr int64_t kLoad = 4 << 20;

LoadRate After(int64_t loads) {
  LoadRate rate;
  for (int64_t i = 0; i < loads; ++i) rate.Note(kLoad, absl::Milliseconds(4));
  return rate;
}

TEST(LoadRateTest, IsThatOfTheFastestLoad) {
  LoadRate rate = After(LoadRate::kLeastLoads);
  EXPECT_DOUBLE_EQ(rate.bytes_per_second().value(), kLoad / 0.004);
  rate.Note(kLoad, absl::Milliseconds(2));
  rate.Note(kLoad, absl::Milliseconds(8));
  EXPECT_DOUBLE_EQ(rate.bytes_per_second().value(), kLoad / 0.002);
}

TEST(LoadRateTest, TheFirstFewLoadsSayNothing) {
  EXPECT_EQ(After(LoadRate::kLeastLoads - 1).bytes_per_second(), std::nullopt);
}

TEST(LoadRateTest, SmallLoadsAndThoseThatTookNoTimeDoNotCount) {
  LoadRate rate = After(LoadRate::kLeastLoads - 1);
  rate.Note(LoadRate::kLeastBytes - 1, absl::Milliseconds(1));
  rate.Note(kLoad, absl::ZeroDuration());
  EXPECT_EQ(rate.bytes_per_second(), std::nullopt);
  rate.Note(LoadRate::kLeastBytes, absl::Seconds(1));
  EXPECT_DOUBLE_EQ(rate.bytes_per_second().value(), kLoad / 0.004);
}

TEST(ShmRateTest, TheRateOfReadsIsThatOfTheLinkAndInPlaceThereIsNone) {
  ShmFolder folder;
  const Node node(folder, {.name = "node", .link_gbps = 0.8});
  EXPECT_EQ(node.transport->read_rate(/*in_place=*/false), 1e8);
  EXPECT_EQ(node.transport->read_rate(/*in_place=*/true), std::nullopt);
}

// Nobody knows when it has passed.
struct Silent final : backend::FenceState {
  bool Passed() const override { return false; }
  void Wait() const override {}
};

TEST(ShmRateTest, WithoutALinkTheRateOfReadsIsMeasured) {
  ShmFolder folder;
  Node donor(folder, {.name = "donor"}), borrower(folder, {.name = "borrower"});
  constexpr int64_t kBytes = LoadRate::kLeastBytes;
  Lend(donor, borrower, kLease, 0, kBytes, 4096);
  std::vector<std::byte> loaded(kBytes);
  const auto load = [&](const backend::Fence& after) {
    for (int64_t i = 0; i < LoadRate::kLeastLoads; ++i) {
      (void)borrower.transport->Await(borrower.transport->Load({{kLease, 0, kBytes, At(loaded.data())}}, after));
    }
  };
  load(backend::Fence(std::make_shared<Silent>()));
  EXPECT_EQ(borrower.transport->read_rate(/*in_place=*/false), std::nullopt) << "nobody knows when they began";
  const absl::Time begin = borrower.clock.Now();
  load({});
  const double mean = LoadRate::kLeastLoads * kBytes / absl::ToDoubleSeconds(borrower.clock.Now() - begin);
  EXPECT_GE(borrower.transport->read_rate(/*in_place=*/false).value(), mean);
  EXPECT_EQ(borrower.transport->read_rate(/*in_place=*/true), std::nullopt);
}

}  // namespace
}  // namespace swiftcache::engine::transport
