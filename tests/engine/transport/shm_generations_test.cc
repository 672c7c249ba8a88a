// SPDX-License-Identifier: Apache-2.0
#include "engine/transport/shm_generations.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <array>
#include <atomic>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "engine/backend/cpu/thread_pool.h"
#include "engine/backend/step.h"

namespace swiftcache::engine::transport {
namespace {

constexpr size_t kBytes = ShmGenerations::kWords * sizeof(uint64_t);

TEST(ShmGenerationsTest, AWordThatWasReturnedIsTakenAgainAtALaterEpoch) {
  absl::StatusOr<ShmGenerations> generations = ShmGenerations::Create();
  ASSERT_TRUE(generations.ok()) << generations.status();
  uint64_t last = 0;
  const std::optional<int32_t> first = generations->Take();
  ASSERT_TRUE(first.has_value());
  for (int grant = 0; grant < 10; ++grant) {
    const uint64_t epoch = generations->Advance(*first).value();
    EXPECT_GT(epoch, last);
    last = epoch;
    generations->Return(*first);
    ASSERT_EQ(generations->Take(), first);
  }
}

TEST(ShmGenerationsTest, EveryWordIsTakenOnceAndThereAreNoMore) {
  absl::StatusOr<ShmGenerations> generations = ShmGenerations::Create();
  ASSERT_TRUE(generations.ok()) << generations.status();
  std::vector<bool> taken(ShmGenerations::kWords, false);
  for (int32_t i = 0; i < ShmGenerations::kWords; ++i) {
    const int32_t word = generations->Take().value();
    EXPECT_FALSE(taken.at(word));
    taken[word] = true;
  }
  EXPECT_EQ(generations->Take(), std::nullopt);
}

// One thread fences, the threads of a pool write, and a borrower that maps the words reads: what it believes is of one
// generation. (What they share are relaxed atomics here, which order nothing, as bytes would not.)
TEST(ShmGenerationsTest, WhoBelievesWhatItReadSawNothingThatAPoolWroteAfterTheFence) {
  constexpr uint64_t kRounds = 3000;
  constexpr int kPlaces = 64;
  absl::StatusOr<ShmGenerations> generations = ShmGenerations::Create();
  ASSERT_TRUE(generations.ok()) << generations.status();
  const int32_t word = generations->Take().value();
  void* const mapped = mmap(nullptr, kBytes, PROT_READ, MAP_SHARED, generations->fd(), 0);
  ASSERT_NE(mapped, MAP_FAILED);

  struct alignas(64) Place {
    std::atomic<uint64_t> bytes{0};
  };
  std::array<Place, kPlaces> memory;
  std::atomic<uint64_t> granted{0};
  std::atomic<bool> stop{false};
  std::atomic<int64_t> believed{0}, wrong{0};
  std::thread borrower([&] {
    while (!stop.load()) {
      const uint64_t epoch = granted.load(std::memory_order_acquire);
      const backend::WordCheck check{static_cast<const std::atomic<uint64_t>*>(mapped) + word, epoch};
      bool right = true;
      for (Place& place : memory) right = place.bytes.load(std::memory_order_relaxed) == epoch && right;
      if (!check.Holds()) continue;
      ++believed;
      if (!right) ++wrong;
    }
  });
  backend::cpu::ThreadPool pool(3);
  const absl::Time deadline = absl::Now() + absl::Seconds(200);
  for (uint64_t round = 0; round < kRounds; ++round) {
    const uint64_t epoch = generations->Advance(word).value();
    pool.ParallelFor(kPlaces, [&](int64_t i, int) { memory[i].bytes.store(epoch, std::memory_order_relaxed); });
    granted.store(epoch, std::memory_order_release);
    if (round % 100 != 0) continue;
    for (const int64_t before = believed; believed == before && absl::Now() < deadline;) std::this_thread::yield();
  }
  stop = true;
  borrower.join();
  munmap(mapped, kBytes);
  EXPECT_LT(absl::Now(), deadline) << "nobody believed a generation that stands";
  EXPECT_EQ(wrong.load(), 0) << "of " << believed.load();
}

}  // namespace
}  // namespace swiftcache::engine::transport
