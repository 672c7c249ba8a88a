// SPDX-License-Identifier: Apache-2.0
// A GPU's blocks of threads, emulated on one thread of the host: each GPU thread is a fiber that runs until it meets
// others, and then another one, in a seeded random order. The headers in include/ say in these words what CUDA's say. What
// is checked here and would hang, fail or be undefined on a GPU aborts, with a line that says what and where. A barrier
// that is missing shows in most orders. What does not show: what a block declares as shared is never unset (it keeps the
// values of the block before) and counts towards no limit; all writes are seen in their order; lanes meet by whatever way
// they come; banks, registers and bounds of launches are not looked at.
//
//   simt::RunGrid({.blocks = {2, 1, 1}, .threads = 256, .memory_bytes = 1024}, [&] { Kernel(op); });
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "absl/functional/function_ref.h"

namespace swiftcache::simt {

inline constexpr unsigned kWarp = 32, kMostThreads = 1024;

struct Dimensions {
  unsigned x = 1, y = 1, z = 1;
};

struct Grid {
  Dimensions blocks;
  unsigned threads = kWarp;  // of a block
  int64_t memory_bytes = 0;  // of a block, beside what it declares: filled with ones (NaN), with a guard behind it
};

/// Blocks run one after the other, in a random order. Thread-safety: one grid at a time, others wait.
void RunGrid(const Grid& grid, absl::FunctionRef<void()> kernel);

/// Of all orders from here on.
void Seed(uint64_t seed);

/// The following are for the threads of a grid alone.
std::byte* BlockMemory();
/// All threads of the block, from the same line.
void SyncThreads(const char* file, int line);

/// What each lane of a warp hands in; null for lanes that are not in the mask.
using Lanes = std::array<void*, kWarp>;
/// Waits until all lanes of the mask have called it for the same; the last one of them calls `once`.
void Meet(unsigned mask, const char* what, void* mine, absl::FunctionRef<void(const Lanes&)> once);
/// Some lanes of this warp that go on together: all that stand here, or fewer.
unsigned ActiveMask();

/// For what a GPU does in shared memory alone: dies where the bytes do not lie in BlockMemory(). What a block declares
/// as shared is not known here, and no kernel of ours uses it so.
void CheckInBlockMemory(const void* begin, size_t bytes, const char* what);

/// Copies to BlockMemory() that arrive when they are awaited, or before; until then there is NaN.
void BeginCopy(void* to, const void* from, size_t bytes);
void CommitCopies();
void AwaitCopies(size_t but_so_many_batches);

[[noreturn]] void Die(const char* what);

/// Meet with a value of one type. f: of an array of pointers to T, by lane.
template <class T, class F>
T MeetWith(unsigned mask, const char* what, T mine, F f) {
  Meet(mask, what, &mine, [&f](const Lanes& lanes) {
    std::array<T*, kWarp> typed;
    for (unsigned i = 0; i < kWarp; ++i) typed[i] = static_cast<T*>(lanes[i]);
    f(typed);
  });
  return mine;
}

}  // namespace swiftcache::simt
