// SPDX-License-Identifier: Apache-2.0
#include "engine/exec/block_addresses.h"

#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <vector>

#include "engine/backend/address_space.h"
#include "engine/kv/kv_cache.h"

namespace swiftcache::engine::exec {
namespace {

constexpr int64_t kTokensOfABlock = 2;  // of a block
std::byte g_memory[100'000];            // 1000 bytes a region, 10 a place

class BlockAddressesTest : public testing::Test {
 protected:
  static backend::DeviceAddress At(kv::Place place) {
    return backend::AddressSpace().Of(g_memory) + (1000 * place.region.value() + 10 * place.index);
  }
  static std::vector<int32_t> Count(int64_t tokens) {
    std::vector<int32_t> ids(tokens);
    std::iota(ids.begin(), ids.end(), 0);
    return ids;
  }
  void Compute(kv::BlockTable& table, int64_t blocks) {
    ASSERT_EQ(cache_.Grow(table, blocks * kTokensOfABlock), kv::Growth::kDone);
    cache_.Commit(table, Count(blocks * kTokensOfABlock), blocks * kTokensOfABlock);
  }
  // Returns how many addresses were made for it.
  int64_t Follow(const kv::BlockTable& table) {
    int64_t made = 0;
    addresses_.Follow(cache_, table, [&made](kv::Place place) {
      ++made;
      return At(place);
    });
    EXPECT_EQ(addresses_.size(), table.size());
    int64_t leased = 0;
    for (int64_t i = 0; i < table.size(); ++i) {
      EXPECT_EQ(addresses_.all()[i], At(cache_.place(table[i]))) << "block " << i;
      EXPECT_EQ(addresses_.place(i), cache_.place(table[i]));
      leased += !cache_.place(table[i]).local();
    }
    EXPECT_EQ(addresses_.num_leased(), leased);
    int64_t by_lease = 0;
    for (const auto& [region, blocks] : addresses_.by_lease()) {
      EXPECT_GT(blocks, 0);
      by_lease += blocks;
    }
    EXPECT_EQ(by_lease, leased);
    return made;
  }

  kv::KvCache cache_{{.num_blocks = 40, .block_tokens = kTokensOfABlock, .may_borrow = true, .watermark_blocks = 20}};
  BlockAddresses addresses_;
};

TEST_F(BlockAddressesTest, AStepMakesTheAddressesOfWhatIsNewOrMoved) {
  kv::BlockTable table;
  cache_.Attach(table, "", Count(100));
  Compute(table, 30);
  EXPECT_EQ(Follow(table), 30);
  EXPECT_EQ(Follow(table), 0);
  Compute(table, 31);
  EXPECT_EQ(Follow(table), 1);
  const kv::RegionId lease = cache_.AddRegion(20);
  const std::vector<kv::Move> spills = cache_.TakeMoves(/*max_spills=*/7, 0);
  ASSERT_EQ(spills.size(), 7u);
  EXPECT_EQ(Follow(table), 0) << "until they have arrived they lie where they did";
  for (const kv::Move& move : spills) EXPECT_TRUE(cache_.FinishMove(move));
  Compute(table, 33);
  EXPECT_EQ(Follow(table), 9);
  EXPECT_EQ(addresses_.by_lease().at(lease), 7);
  cache_.RegionDraining(lease);
  for (const kv::Move& move : cache_.PlanDrain(lease, 7)) EXPECT_TRUE(cache_.FinishMove(move));
  EXPECT_EQ(Follow(table), 7);
  EXPECT_TRUE(addresses_.by_lease().empty());
}

TEST_F(BlockAddressesTest, ATableThatWasEmptiedIsAnotherEvenWhereItHasAsManyBlocks) {
  kv::BlockTable first, table;
  cache_.Attach(table, "a", Count(40));
  Compute(table, 10);
  Follow(table);
  cache_.Release(table);
  cache_.Attach(first, "b", Count(40));
  Compute(first, 12);
  cache_.Attach(table, "c", Count(40));
  Compute(table, 10);
  EXPECT_EQ(Follow(table), 10);
  cache_.Release(table);
  EXPECT_EQ(Follow(table), 0);
  cache_.Attach(table, "b", Count(5));
  EXPECT_EQ(Follow(table), 2) << "what it found";
}

// Somebody who was not there for long: what changed meanwhile is more than what is kept of it.
TEST_F(BlockAddressesTest, MoreChangesThanAreKeptCostALookAtAllBlocksAndNoMore) {
  kv::BlockTable table, other;
  cache_.Attach(table, "", Count(40));
  Compute(table, 10);
  cache_.Attach(other, "other", Count(60));
  Compute(other, 25);
  Follow(table);
  uint64_t changes = 0;
  while (changes <= kv::PlaceLog::kKept) {
    const kv::RegionId lease = cache_.AddRegion(40);
    for (const kv::Move& move : cache_.TakeMoves(40, 0)) changes += cache_.FinishMove(move);
    cache_.RegionDraining(lease);
    for (const kv::Move& move : cache_.PlanDrain(lease, 40)) changes += cache_.FinishMove(move);
    ASSERT_EQ(cache_.DropRegion(lease), 0);
  }
  EXPECT_EQ(Follow(table), 10);
}

}  // namespace
}  // namespace swiftcache::engine::exec
