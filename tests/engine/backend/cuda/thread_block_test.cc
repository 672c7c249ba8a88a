// SPDX-License-Identifier: Apache-2.0
// The block of a GPU's threads in the emulation, beside the host's; then what the emulation notices.
#include "engine/backend/cuda/native/thread_block.cuh"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <csignal>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <type_traits>
#include <vector>

#include "engine/backend/cuda/block.h"
#include "engine/backend/cuda/native/launch.cuh"
#include "tests/fakes/simt/simt.h"

namespace swiftcache::engine::backend::cuda {
namespace {

constexpr unsigned kThreads = 256, kSeeds = 10;

// f(block) by all threads of one block, in another order for each seed.
template <class F>
void RunOnce(F f, unsigned threads = kThreads, int64_t memory_bytes = 0) {
  simt::RunGrid({.threads = threads, .memory_bytes = memory_bytes}, [&] {
    ThreadBlock block;
    f(block);
  });
}
template <class F>
void RunInManyOrders(F f, unsigned threads = kThreads, int64_t memory_bytes = 0) {
  for (unsigned seed = 1; seed <= kSeeds; ++seed) {
    simt::Seed(seed);
    RunOnce(f, threads, memory_bytes);
    if (testing::Test::HasFailure()) FAIL() << "seed " << seed;
  }
}

// Small whole numbers: every order of a sum of their products is exact.
Bf16 Small(std::mt19937& random) { return ToBf16(static_cast<float>(static_cast<int>(random() % 17) - 8)); }

TEST(ThreadBlockTest, WhatOneCallWroteTheNextOneReads) {
  for (const unsigned threads : {32u, 128u, 1024u}) {
    for (const int64_t n : {1, 31, 700, 2500}) {
      std::vector<int64_t> squares(n), turned(n);
      int64_t times = 0, first = 0;
      RunInManyOrders(
          [&](ThreadBlock& block) {
            block.Once([&] { ++times; });
            block.ForEach(n, [&](int64_t i) { squares[i] = i * i + times; });
            block.ForEach(n, [&](int64_t i) { turned[i] = squares[n - 1 - i]; });
            block.Once([&] { first = turned[0]; });
          },
          threads);
      EXPECT_EQ(times, kSeeds);
      EXPECT_EQ(first, (n - 1) * (n - 1) + kSeeds);
      for (int64_t i = 0; i < n; ++i) ASSERT_EQ(turned[i], (n - 1 - i) * (n - 1 - i) + kSeeds);
    }
  }
}

template <class T>
void CheckReductions(T lowest) {
  for (const unsigned threads : {32u, 96u, 1024u}) {
    for (const int64_t n : {0, 1, 33, 600}) {
      HostBlock host;
      std::vector<T> sums, maxima;
      const auto value = [](int64_t i, int times) { return static_cast<T>((i * 7 + 3) % 1000 * times); };
      for (const int times : {0, 1, 2}) {
        sums.push_back(host.Sum<T>(n, [&](int64_t i) { return value(i, times); }));
        maxima.push_back(host.Max<T>(n, lowest, [&](int64_t i) { return value(i, times); }));
      }
      RunInManyOrders(
          [&](ThreadBlock& block) {  // several, one after the other, in the same memory
            for (const int times : {1, 0, 2}) {
              EXPECT_EQ(block.Sum<T>(n, [&](int64_t i) { return value(i, times); }), sums[times]);
            }
            for (const int times : {1, 0, 2}) {
              EXPECT_EQ(block.Max<T>(n, lowest, [&](int64_t i) { return value(i, times); }), maxima[times]);
            }
          },
          threads);
    }
  }
}

TEST(ThreadBlockTest, SumsAndMaximaAreThoseOfTheHost) {
  CheckReductions<float>(-5);
  CheckReductions<double>(-5);
  CheckReductions<uint64_t>(4);
  CheckReductions<int>(-1);
}

TEST(ThreadBlockTest, ASumOfFloatsDoesNotDependOnWhoRunsWhen) {
  std::mt19937 random(1);
  std::vector<float> values(3000), sums;
  for (float& value : values) value = std::ldexp(static_cast<float>(random() % 1000), static_cast<int>(random() % 40));
  RunInManyOrders([&](ThreadBlock& block) {
    const float sum = block.Sum<float>(values.size(), [&](int64_t i) { return values[i]; });
    block.Once([&] { sums.push_back(sum); });
  });
  EXPECT_EQ(sums, std::vector<float>(kSeeds, sums[0]));
}

// What each warp has of a strip of a product of its own, and what it adds a second product to: beside the host's.
template <int kRows, int kCols, int kDim>
void CheckStrips(int dim) {
  constexpr int kStride = kDim + 8, kWarps = ThreadBlock::kWarps;
  struct alignas(128) Memory {
    Bf16 a[kWarps][kRows * kStride], b[kCols * kStride], c[kCols * kStride];
  };
  const auto numbers = std::make_unique<Memory>();
  std::mt19937 random(2);
  for (auto& of_warp : numbers->a) {
    for (Bf16& x : of_warp) x = Small(random);
  }
  for (Bf16& x : numbers->b) x = Small(random);
  for (Bf16& x : numbers->c) x = Small(random);
  // All that a strip says of itself: its numbers, then of each row the largest and the sum.
  using Found = std::vector<std::array<std::array<float, kDim + 2>, kRows>>;
  const auto compute = [&](auto& block, const Memory& memory, Found& found) {
    using Block = std::decay_t<decltype(block)>;
    typename Block::template OfWarps<typename Block::template Strip<kRows, kDim>> sums;
    block.EachWarp(sums, [&](int warp, auto& mine) {
      block.Each(mine, [](int own, int col, float& sum) { sum = static_cast<float>(col % 5); });
      typename Block::template HeldRows<kRows, kDim> rows;
      block.HoldRows(rows, BlockMatrix<const Bf16>{memory.a[warp], kStride}, dim);
      typename Block::template Strip<kRows, kCols> product;
      constexpr int kOwnRows = decltype(product)::kOwnRows;
      for (int times = 0; times < 2; ++times) {  // of the same rows; what it was is no matter
        block.MultiplyStrip(product, rows, BlockMatrix<const Bf16>{memory.b, kStride}, dim);
      }
      float largest[kOwnRows], sum[kOwnRows];
      for (int own = 0; own < kOwnRows; ++own) largest[own] = -1e9f, sum[own] = 0;
      block.Each(product, [&](int own, int col, float& x) {
        x = std::fmod(x, 128.0f);  // which bf16 holds
        largest[own] = std::max(largest[own], x);
        sum[own] += x;
      });
      block.AddProduct(mine, product, BlockMatrix<const Bf16>{memory.c, kStride}, dim);
      auto& of_warp = found[warp];
      block.Each(mine, [&](int own, int col, float x) { of_warp[block.RowOf(own)][col] = x; });
      for (int own = 0; own < kOwnRows; ++own) {
        of_warp[block.RowOf(own)][kDim] = block.MaxOfRow(largest[own]);
        of_warp[block.RowOf(own)][kDim + 1] = block.SumOfRow(sum[own]);
      }
    });
  };
  HostBlock host;
  Found wanted(kWarps);
  compute(host, *numbers, wanted);
  RunInManyOrders(
      [&](ThreadBlock& block) {
        static Found found;
        auto& memory = *reinterpret_cast<Memory*>(simt::BlockMemory());
        block.Once([&] {
          found = Found(kWarps);
          std::memcpy(&memory, numbers.get(), sizeof(Memory));
        });
        compute(block, memory, found);
        block.Sync();
        block.Once([&] { EXPECT_EQ(found, wanted); });
      },
      kWarps * 32, sizeof(Memory));
}

TEST(ThreadBlockTest, StripsOfWarpsAreThoseOfTheHost) {
  CheckStrips<16, 16, 64>(16);
  CheckStrips<16, 32, 64>(64);
  CheckStrips<16, 16, 128>(80);
  CheckStrips<16, 32, 256>(256);
  CheckStrips<32, 32, 64>(48);
  CheckStrips<32, 32, 128>(128);
}

TEST(ThreadBlockTest, AnyOfAWarpIsAskedWarpByWarp) {
  RunInManyOrders([&](ThreadBlock& block) {
    const unsigned warp = threadIdx.x / 32;
    EXPECT_EQ(block.AnyOfWarp(threadIdx.x % 32 == 5 && warp % 2 == 1), warp % 2 == 1);
  });
}

template <int kUnits>
void CheckRuns(int64_t runs) {
  constexpr int64_t kRows = 8 * kUnits, kOutputs = 16;
  std::mt19937 random(3);
  std::vector<Bf16Run> weights(runs * kOutputs), rows(runs * kRows);
  for (auto* const all : {&weights, &rows}) {
    for (Bf16Run& run : *all) {
      for (uint32_t& pair : run.pairs) pair = Small(random) | uint32_t{Small(random)} << 16;
    }
  }
  const auto stored = [&](int64_t output, int64_t run) { return weights.at(output * runs + run); };
  const auto decode = [](const Bf16Run& run) { return run; };
  const auto in = [&](int64_t row, int64_t run) { return rows.at(row * runs + run); };
  std::vector<float> wanted(kRows * kOutputs);
  HostBlock host;
  host.MultiplyRuns<kUnits>(runs, stored, decode, in,
                            [&](int64_t r, int64_t o, float x) { wanted[r * kOutputs + o] = x; });
  for (const unsigned threads : {32u, 256u}) {
    std::vector<float> found(2 * kRows * kOutputs);
    RunInManyOrders(
        [&](ThreadBlock& block) {
          for (const int negative : {0, 1}) {  // one after the other, in the same memory
            const auto signed_in = [&](int64_t row, int64_t run) {
              Bf16Run numbers = in(row, run);
              for (uint32_t& pair : numbers.pairs) pair ^= negative * 0x80008000u;
              return numbers;
            };
            block.MultiplyRuns<kUnits>(runs, stored, decode, signed_in, [&](int64_t r, int64_t o, float x) {
              found.at((negative * kRows + r) * kOutputs + o) = x;
            });
          }
        },
        threads);
    for (int64_t i = 0; i < kRows * kOutputs; ++i) {
      ASSERT_EQ(found[i], wanted[i]) << runs << " runs, " << kRows << " rows, " << threads << " threads";
      ASSERT_EQ(found[kRows * kOutputs + i], -wanted[i]);
    }
  }
}

TEST(ThreadBlockTest, ProductsOfRunsAreThoseOfTheHost) {
  for (const int64_t runs : {1, 3, 4, 33, 70}) {
    CheckRuns<1>(runs);
    CheckRuns<2>(runs);
    CheckRuns<4>(runs);
    CheckRuns<8>(runs);
  }
}

TEST(ThreadBlockTest, CopiesAreThereForAllWhenTheyAreAwaited) {
  constexpr int64_t kPieces = 300;
  std::vector<SixteenBytes> from(2 * kPieces);
  for (int64_t i = 0; i < 2 * kPieces; ++i) from[i].words[0] = from[i].words[1] = i + 1;
  const auto copy = [&](ThreadBlock& block) {
    auto* const to = reinterpret_cast<SixteenBytes*>(simt::BlockMemory());
    const auto begin = [&](int64_t first) {
      block.ForEach(kPieces, [&](int64_t i) { block.BeginCopy(&to[first + i], &from[first + i]); });
      block.EndCopies();
    };
    const auto check = [&](int64_t first) {
      block.ForEach(kPieces, [&](int64_t i) {
        EXPECT_EQ(to[first + (i * 7) % kPieces].words[1], from[first + (i * 7) % kPieces].words[1]);
      });
    };
    begin(0);
    begin(kPieces);
    block.AwaitCopies(/*but=*/1);
    check(0);
    begin(0);
    block.AwaitCopies(/*but=*/0);
    check(0);
    check(kPieces);
  };
  RunInManyOrders(copy, kThreads, static_cast<int64_t>(from.size() * sizeof(SixteenBytes)));
}

TEST(ThreadBlockTest, WhatMostThreadsAddToFewSumsIsCounted) {
  constexpr int64_t kCount = 1000, kSums = 5;
  constexpr uint64_t kLarge = (uint64_t{1} << 46) + 12345;
  uint64_t sums[kSums];
  uint32_t counts[kSums];
  RunInManyOrders([&](ThreadBlock& block) {
    block.ForEach(kSums, [&](int64_t i) { sums[i] = counts[i] = 0; });
    block.ForEach(kCount, [&](int64_t i) {
      if (i % 4 != 0) ThreadBlock::Count(&counts[i % kSums]);
      if (i % 3 != 0) ThreadBlock::Add(&sums[i % kSums], kLarge);
      if (i % 7 == 0) ThreadBlock::Add(&sums[0], 1);
    });
    block.ForEach(kSums, [&](int64_t s) {
      uint64_t wanted = 0;
      uint32_t counted = 0;
      for (int64_t i = 0; i < kCount; ++i) {
        wanted += (i % 3 != 0 && i % kSums == s ? kLarge : 0) + (s == 0 && i % 7 == 0);
        counted += i % 4 != 0 && i % kSums == s ? 1 : 0;
      }
      EXPECT_EQ(sums[s], wanted);
      EXPECT_EQ(counts[s], counted);
    });
  });
}

// --- the emulation

int WrongWithoutABarrier(bool barrier) {
  std::vector<int> mine(kThreads), others(kThreads);
  int wrong = 0;
  for (unsigned seed = 1; seed <= kSeeds; ++seed) {
    simt::Seed(seed);
    std::fill(mine.begin(), mine.end(), -1);
    simt::RunGrid({.threads = kThreads}, [&] {
      mine[threadIdx.x] = static_cast<int>(threadIdx.x);
      if (barrier) __syncthreads();
      others[threadIdx.x] = mine[(threadIdx.x + 1) % kThreads];
    });
    for (unsigned i = 0; i < kThreads; ++i) wrong += others[i] != static_cast<int>((i + 1) % kThreads) ? 1 : 0;
  }
  return wrong;
}

TEST(EmulatedGpuTest, ABarrierThatIsMissingShows) {
  EXPECT_EQ(WrongWithoutABarrier(true), 0);
  EXPECT_GT(WrongWithoutABarrier(false), 0);
}

TEST(EmulatedGpuTest, WhatIsReadOfACopyUnderWayIsNoNumber) {
  const SixteenBytes from;
  int read_too_early = 0;
  for (unsigned seed = 1; seed <= kSeeds; ++seed) {
    simt::Seed(seed);
    const auto copy = [&](ThreadBlock& block) {
      auto* const to = reinterpret_cast<float*>(simt::BlockMemory());
      block.Once([&] { block.BeginCopy(reinterpret_cast<SixteenBytes*>(to), &from); });
      block.Once([&] { read_too_early += std::isnan(to[3]) ? 1 : 0; });
      block.EndCopies();
      block.AwaitCopies(/*but=*/0);
      EXPECT_EQ(to[3], 0);
    };
    RunOnce(copy, kThreads, sizeof(from));
  }
  EXPECT_EQ(read_too_early, kSeeds);
}

__global__ void CountKernel(int* count) {
  if (threadIdx.x == 0) ++*count;
}

TEST(EmulatedGpuTest, AKernelHasAsMuchMemoryAsItAskedForLast) {
  FakeCudaDriver driver;
  ASSERT_TRUE(CublasLt::Load(driver).ok());  // it launches there
  const Stream stream = driver.CreateStream().value();
  int launched = 0;
  const auto launches = [&](int64_t kib) {
    return Launch("", stream, CountKernel, {.threads = 32, .bytes = kib << 10}, &launched).ok();
  };
  const auto ask = [](int kib) {
    return cudaFuncSetAttribute(CountKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kib << 10);
  };
  EXPECT_TRUE(launches(48));
  EXPECT_FALSE(launches(49));
  EXPECT_EQ(ask(100), cudaSuccess);
  EXPECT_TRUE(launches(100));
  EXPECT_FALSE(launches(101));
  EXPECT_EQ(ask(228), cudaErrorInvalidValue);
  EXPECT_TRUE(launches(100));
  EXPECT_EQ(ask(64), cudaSuccess);
  EXPECT_FALSE(launches(65));
  driver.DestroyStream(stream);
  EXPECT_EQ(launched, 3);
}

TEST(EmulatedGpuDeathTest, WhatWouldHangIsNamed) {
  EXPECT_DEATH(RunOnce([](ThreadBlock& block) {
                 if (threadIdx.x != 7) block.Sync();
               }),
               "nobody can go on: 1 threads have ended, as 7; 255 threads wait in .*thread_block.cuh");
  EXPECT_DEATH(RunOnce([](ThreadBlock& block) {
                 if (threadIdx.x < 32) __syncthreads();
                 block.Sync();
               }),
               "in different barriers");
  EXPECT_DEATH(RunOnce([](ThreadBlock&) {
                 if (threadIdx.x % 2 == 0) __syncwarp();
               }),
               "nobody can go on: .*128 threads wait in __syncwarp");
}

TEST(EmulatedGpuDeathTest, WhatIsUndefinedIsNamed) {
  EXPECT_DEATH(RunOnce([](ThreadBlock&) { (void)__shfl_down_sync(1u, 0, 1); }), "without the thread that calls it");
  EXPECT_DEATH(RunOnce([](ThreadBlock&) {
                 if (threadIdx.x % 32 < 16) (void)__shfl_down_sync(0xffffu, 0, 1);
               }),
               "a lane that is not in the mask");
  EXPECT_DEATH(RunOnce([](ThreadBlock&) { threadIdx.x % 2 == 0 ? __syncwarp() : (void)__reduce_add_sync(~0u, 1); }),
               "lanes of a warp meet in");
  EXPECT_DEATH(RunOnce([&](ThreadBlock&) { simt::BlockMemory()[100] = std::byte{1}; }, 32, 100),
               "behind the memory of the block");
}

// f(block, memory) in a block with 64 bytes of memory.
template <class F>
void RunWithMemory(F f) {
  RunOnce([&](ThreadBlock& block) { f(block, reinterpret_cast<SixteenBytes*>(simt::BlockMemory())); }, 32, 64);
}

TEST(EmulatedGpuDeathTest, ACopyThatAGpuCannotDoIsNamed) {
  static const SixteenBytes outside[2];
  EXPECT_DEATH(RunWithMemory([](ThreadBlock& block, SixteenBytes* memory) { block.BeginCopy(memory + 4, outside); }),
               "the destination of a copy is not in the block's memory");
  EXPECT_DEATH(RunWithMemory([](ThreadBlock& block, SixteenBytes* memory) { block.BeginCopy(memory - 1, outside); }),
               "the destination of a copy is not in the block's memory");
  EXPECT_DEATH(RunWithMemory([](ThreadBlock& block, SixteenBytes* memory) { block.BeginCopy(memory, memory + 1); }),
               "a copy from the block's memory");
  EXPECT_DEATH(RunWithMemory([](ThreadBlock&, SixteenBytes* memory) {
                 __pipeline_memcpy_async(memory, reinterpret_cast<const std::byte*>(outside) + 8, 16);
               }),
               "do not lie on as many");
  EXPECT_DEATH(RunWithMemory([](ThreadBlock&, SixteenBytes* memory) { __pipeline_memcpy_async(memory, outside, 16); }),
               "nobody waited");
}

TEST(EmulatedGpuDeathTest, ASquareIsLoadedFromTheBlocksMemoryAlone) {
  static const SixteenBytes outside;
  const auto load = [](auto* row) {
    uint32_t square[4];
    LoadSquares(square, reinterpret_cast<const Bf16*>(row));
  };
  RunWithMemory([&](ThreadBlock&, SixteenBytes* memory) { load(memory + threadIdx.x % 4); });
  EXPECT_DEATH(RunWithMemory([&](ThreadBlock&, SixteenBytes* memory) { load(memory + threadIdx.x % 5); }),
               "a row of a square is not in the block's memory");
  EXPECT_DEATH(RunWithMemory([&](ThreadBlock&, SixteenBytes*) { load(&outside); }),
               "a row of a square is not in the block's memory");
}

// Of a stack; less than half of a page at a time.
[[gnu::noinline]] int Use(int kib) {
  volatile char bytes[1024];
  bytes[0] = static_cast<char>(kib);
  return kib == 0 ? 0 : Use(kib - 1) + bytes[0];
}

TEST(EmulatedGpuDeathTest, AThreadDoesNotWriteOverTheStackOfAnother) {
  const auto use = [](int kib) {
    RunOnce([kib](ThreadBlock&) {
      if (threadIdx.x != 5) return;
      (void)Use(kib);
      std::_Exit(0);
    });
  };
  EXPECT_EXIT(use(16), testing::ExitedWithCode(0), "");
  EXPECT_EXIT(use(66), testing::KilledBySignal(SIGSEGV), "");
}

}  // namespace
}  // namespace swiftcache::engine::backend::cuda
