// SPDX-License-Identifier: Apache-2.0
#include "engine/backend/cpu/cpu_kv_memory.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

namespace swiftcache::engine::backend::cpu {
namespace {

constexpr int64_t kBlock = 1 << 20;

class CpuKvMemoryTest : public testing::Test {
 protected:
  void SetUp() override {
    auto arena = memory::Arena::Create({.bytes = 4 * kBlock, .block_bytes = kBlock});
    ASSERT_TRUE(arena.ok()) << arena.status();
    memory_.emplace(*std::move(arena));
    std::memset(memory_->arena().base(), 1, memory_->bytes());
  }
  std::vector<std::byte> Bytes() const {
    std::byte* const base = const_cast<CpuKvMemory&>(*memory_).arena().base();
    return {base, base + memory_->bytes()};
  }
  std::optional<CpuKvMemory> memory_;
};

TEST_F(CpuKvMemoryTest, ZeroesWhatItIsGivenAndNoByteBeside) {
  for (const int64_t begin : {0, 1, 15, 16, 17, 4095}) {
    for (const int64_t bytes : {0, 1, 14, 15, 16, 17, 33, 4096, 70001}) {
      SCOPED_TRACE(testing::Message() << bytes << " bytes at " << begin);
      std::memset(memory_->arena().base(), 1, memory_->bytes());
      std::vector<std::byte> wanted = Bytes();
      std::fill_n(wanted.begin() + begin, bytes, std::byte{0});
      const ByteRange range{memory_->base() + begin, bytes};
      EXPECT_TRUE(memory_->Zero({&range, 1}).Passed());
      EXPECT_TRUE(Bytes() == wanted);
    }
  }
}

TEST_F(CpuKvMemoryTest, CopiesInTheOrderOfItsMoves) {
  std::memset(memory_->arena().base(), 2, kBlock);
  const auto block = [this](int64_t i) { return memory_->base() + i * kBlock; };
  EXPECT_TRUE(
      memory_->Copy(std::vector<ByteMove>{{block(0), block(1), kBlock}, {block(1), block(3), kBlock}}).Passed());
  const std::vector<std::byte> bytes = Bytes();
  for (const auto& [at, value] : {std::pair(0, 2), {1, 2}, {2, 1}, {3, 2}}) {
    EXPECT_EQ(bytes[at * kBlock], std::byte(value)) << at;
    EXPECT_EQ(bytes[(at + 1) * kBlock - 1], std::byte(value)) << at;
  }
}

TEST_F(CpuKvMemoryTest, KnowsFromWhatItZeroedHowFastItIs) {
  const int64_t assumed = memory_->bytes_in_a_millisecond();
  const ByteRange small{memory_->base(), 4096}, all{memory_->base(), memory_->bytes()};
  (void)memory_->Zero({&small, 1});
  EXPECT_EQ(memory_->bytes_in_a_millisecond(), assumed) << "too little to tell";
  (void)memory_->Zero({&all, 1});
  EXPECT_NE(memory_->bytes_in_a_millisecond(), assumed);
  EXPECT_GT(memory_->bytes_in_a_millisecond(), 0);
}

}  // namespace
}  // namespace swiftcache::engine::backend::cpu
