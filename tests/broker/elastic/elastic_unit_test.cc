// SPDX-License-Identifier: Apache-2.0
#include "broker/elastic/elastic_unit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <random>

#include "common/base/units.h"
#include "tests/fakes/random_seed.h"

namespace swiftcache::broker::elastic {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kTinyLlamaB = 13'824, kSmolLm2 = 368'640;

ElasticUnit Unit(const Pair& pair) {
  const auto unit = ComputeUnit(pair);
  EXPECT_TRUE(unit.ok()) << unit.status();
  return unit.ok() ? *unit : ElasticUnit{};
}

TEST(ElasticUnitTest, IsTheLcmOfBothBlocksAndThePage) {
  // 13,824 = 2^9 x 27, so a block of tiny-llama-b ends within a page: 8 of them do not.
  const Pair pair{kTinyLlamaB, kTinyLlamaB, 4096, 64 * kMiB};
  EXPECT_EQ(Unit(pair), (ElasticUnit{.bytes = 110'592, .donor_blocks = 8, .borrower_blocks = 8, .wasted_bytes = 0}));
  EXPECT_FALSE(Unit(pair).padded());
  const Pair unmapped{kTinyLlamaB, kTinyLlamaB, 1, 64 * kMiB};
  EXPECT_EQ(Unit(unmapped).donor_blocks, 1);
}

TEST(ElasticUnitTest, DiffersInBlocksOnBothSidesAndNotInBytes) {
  const Pair pair{kTinyLlamaB, kSmolLm2, 4096, 64 * kMiB};
  EXPECT_EQ(Unit(pair), (ElasticUnit{.bytes = 1'105'920, .donor_blocks = 80, .borrower_blocks = 3, .wasted_bytes = 0}));
  const Pair back{kSmolLm2, kTinyLlamaB, 4096, 64 * kMiB};
  EXPECT_EQ(Unit(back), (ElasticUnit{.bytes = 1'105'920, .donor_blocks = 3, .borrower_blocks = 80, .wasted_bytes = 0}));
}

TEST(ElasticUnitTest, IsPaddedWhereTheLcmIsAbsurd) {
  // 7 against 9 heads of 128, 30 layers against 31, 16 tokens a block.
  const int64_t donor = int64_t{2} * 2 * 30 * 7 * 128 * 16, borrower = int64_t{2} * 2 * 31 * 9 * 128 * 16;
  const Pair pair{donor, borrower, 4096, 2 * kGiB};
  EXPECT_GT(std::lcm(donor, borrower), 2 * kGiB / 16);
  const ElasticUnit unit = Unit(pair);
  EXPECT_TRUE(unit.padded());
  EXPECT_LE(unit.bytes, 2 * kGiB / 16);
  EXPECT_LE(unit.wasted_bytes * 100, unit.bytes * 3);
  EXPECT_EQ(unit.bytes, unit.borrower_blocks * borrower + unit.wasted_bytes);
}

TEST(ElasticUnitTest, IsRefusedWhereNoUnitIsSmallEnough) {
  const auto refused = ComputeUnit({kTinyLlamaB, kTinyLlamaB, 4096, 64 * kTinyLlamaB});
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kFailedPrecondition);
  for (const char* part : {"13824 (donor)", "13824 bytes (borrower)", "pages of 4096", "110592 bytes",
                           "wanted at most 55296", "--kv_cache_bytes"}) {
    EXPECT_THAT(std::string(refused.status().message()), HasSubstr(part));
  }
}

TEST(ElasticUnitTest, AnLcmBeyond64BitsIsRefusedAndDoesNotWrap) {
  const int64_t prime = 2'305'843'009'213'693'951;  // 2^61 - 1
  const auto refused = ComputeUnit({prime, prime - 2, 4096, INT64_MAX});
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("over 2^63"));
}

TEST(ElasticUnitTest, SizesBelowOneAreInvalid) {
  for (const Pair& pair : {Pair{0, 1, 1, 1}, Pair{1, -1, 1, 1}, Pair{1, 1, 0, 1}, Pair{1, 1, 1, 0}}) {
    EXPECT_EQ(ComputeUnit(pair).status().code(), absl::StatusCode::kInvalidArgument);
  }
}

// The oracle: tries every multiple of the step.
TEST(ElasticUnitTest, IsWhatAnExhaustiveSearchFinds) {
  std::mt19937 random(RandomSeed());
  const auto draw = [&](int64_t low, int64_t high) { return std::uniform_int_distribution(low, high)(random); };
  int padded = 0, refused = 0, exact = 0;
  for (int i = 0; i < 3000; ++i) {
    const Pair pair{draw(1, 700), draw(1, 700), int64_t{1} << draw(0, 6), draw(1, 400'000)};
    const int64_t step = std::lcm(pair.donor_block_bytes, pair.page_bytes);
    const int64_t lcm = std::lcm(step, pair.borrower_block_bytes), limit = pair.donor_arena_bytes / 16;
    int64_t wanted = lcm <= limit ? lcm : 0;
    for (int64_t bytes = step; wanted == 0 && bytes <= limit; bytes += step) {
      if (bytes >= pair.borrower_block_bytes && bytes % pair.borrower_block_bytes <= bytes / 100 * 3) wanted = bytes;
    }
    const auto found = ComputeUnit(pair);
    ASSERT_EQ(found.ok() ? found->bytes : 0, wanted) << pair.donor_block_bytes << " " << pair.borrower_block_bytes
                                                     << " " << pair.page_bytes << " " << pair.donor_arena_bytes;
    ++(!found.ok() ? refused : found->padded() ? padded : exact);
  }
  EXPECT_GT(exact, 50);
  EXPECT_GT(padded, 50);
  EXPECT_GT(refused, 50);
}

TEST(ElasticUnitTest, ExtentsBeginOnPagesWhereTheirFirstBlockIsAMultipleOfTheStep) {
  EXPECT_EQ(PageStepBlocks(kTinyLlamaB, 4096), 8);
  EXPECT_EQ(PageStepBlocks(kSmolLm2, 4096), 1);
  EXPECT_EQ(PageStepBlocks(100, 1), 1);
}

}  // namespace
}  // namespace swiftcache::broker::elastic
