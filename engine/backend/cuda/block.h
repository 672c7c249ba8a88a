// SPDX-License-Identifier: Apache-2.0
// The threads of one block of a kernel, as the kernel's body sees them. A body is a function template over the block, so
// that the same source runs on a GPU (native/thread_block.cuh, many threads; tests/fakes/simt emulates them) and on the
// host (this one, a single thread).
//
//   template <class Block>
//   GPU_CODE void Halve(Block& block, float* x, int64_t n) {
//     block.ForEach(n, [&](int64_t i) { x[i] /= 2; });
//   }
//   HostBlock block;
//   Halve(block, x, n);
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

#include "engine/backend/bf16.h"
#include "engine/backend/cuda/block_matrix.h"

namespace swiftcache::engine::backend::cuda {

/// What every block offers. All threads of a block call the same functions in the same order; what one of them wrote
/// before a call all of them read after it. Thread-safety: none. Ownership: none. Errors: none.
class HostBlock {
 public:
  /// f(i) for each i of [0, n), by one thread each.
  template <class F>
  void ForEach(int64_t n, F f) {
    for (int64_t i = 0; i < n; ++i) f(i);
  }
  /// The same without a barrier behind it: what is written is there for others after the next call that has one. A thread
  /// has several i under way at once. REQUIRES: kWarps warps.
  template <class F>
  void ForEachUnsynced(int64_t n, F f) {
    ForEach(n, f);
  }
  /// use(i, get(i)) for each i of [0, kCount), likewise; a thread gets all of its own before it uses any.
  /// REQUIRES: kWarps warps; kCount is a multiple of their threads.
  template <int kCount, class Get, class Use>
  void ForEachGot(Get get, Use use) {
    for (int i = 0; i < kCount; ++i) use(i, get(i));
  }
  /// What was read before it may be written after it.
  void Sync() {}
  /// f() once.
  template <class F>
  void Once(F f) {
    f();
  }
  /// The sum of f(i); every thread has it. The order of a sum of floats is the block's own.
  template <class T, class F>
  T Sum(int64_t n, F f) {
    T sum = 0;
    for (int64_t i = 0; i < n; ++i) sum += f(i);
    return sum;
  }
  /// The largest of `lowest` and f(i).
  template <class T, class F>
  T Max(int64_t n, T lowest, F f) {
    for (int64_t i = 0; i < n; ++i) lowest = std::max(lowest, static_cast<T>(f(i)));
    return lowest;
  }
  /// Warps of a block that works by strips, each for itself. OfWarps<T>: of each warp a T, in the registers of its threads.
  /// EachWarp: f(warp, its T); nobody waits for the others.
  static constexpr int kWarps = 4;
  template <class T>
  using OfWarps = std::array<T, kWarps>;
  template <class T, class F>
  void EachWarp(OfWarps<T>& of_warps, F f) {
    for (int warp = 0; warp < kWarps; ++warp) f(warp, of_warps[warp]);
  }
  /// A strip: kRows rows, 16 or 32, that a warp has in its registers. A thread has numbers of kOwnRows rows, those that RowOf
  /// names; here one thread has all. Each: f(own row, column, number) for all that a thread has.
  template <int kRows, int kCols>
  struct Strip {
    static constexpr int kOwnRows = kRows;
    float numbers[kRows][kCols];
  };
  static int RowOf(int own) { return own; }
  template <class AnyStrip, class F>
  static void Each(AnyStrip& strip, F f) {
    for (int own = 0; own < AnyStrip::kOwnRows; ++own) {
      for (int col = 0; auto& number : strip.numbers[own]) f(own, col++, number);
    }
  }
  /// What the threads that have numbers of a row have together; all of the warp ask at once.
  static float MaxOfRow(float mine) { return mine; }
  static float SumOfRow(float mine) { return mine; }
  static bool AnyOfWarp(bool mine) { return mine; }
  /// Rows of which strips are products, taken by a warp: it multiplies them again and again, and may keep them.
  /// rows: [kRows][depth], and stay; depth: a multiple of 16, at most kMostDepth.
  template <int kRows, int kMostDepth>
  struct HeldRows {
    BlockMatrix<const Bf16> rows;
  };
  template <int kRows, int kMostDepth>
  static void HoldRows(HeldRows<kRows, kMostDepth>& to, const BlockMatrix<const Bf16>& rows, int depth) {
    to.rows = rows;
  }
  /// out = a * b^T, with sums in f32. b: [kCols][depth]. The numbers of a row do not depend on the other rows, nor on kRows.
  template <int kRows, int kMostDepth, int kCols>
  static void MultiplyStrip(Strip<kRows, kCols>& out, HeldRows<kRows, kMostDepth>& a, const BlockMatrix<const Bf16>& b,
                            int depth) {
    Each(out, [&](int row, int col, float& sum) {
      sum = 0;
      for (int d = 0; d < depth; ++d) {
        sum += FromBf16(a.rows.data[row * a.rows.stride + d]) * FromBf16(b.data[col * b.stride + d]);
      }
    });
  }
  /// sums += a, rounded to bf16, * b, for the first `cols` columns, a multiple of 16. b: [kDepth][cols]. Likewise.
  template <int kRows, int kCols, int kDepth>
  static void AddProduct(Strip<kRows, kCols>& sums, const Strip<kRows, kDepth>& a, const BlockMatrix<const Bf16>& b,
                         int cols) {
    Each(sums, [&](int row, int col, float& sum) {
      if (col >= cols) return;
      for (int d = 0; d < kDepth; ++d) {
        sum += FromBf16(ToBf16(a.numbers[row][d])) * FromBf16(b.data[d * b.stride + col]);
      }
    });
  }
  /// put(row, output, sum of decode(stored(output, i)) * in(row, i) over the runs i of [0, runs)), with sums in f32, for each
  /// of 8 * kUnits rows and of 16 outputs. What is stored is read ahead. The order of a sum is the block's own, and the same
  /// for each row and kUnits.
  template <int kUnits, class Stored, class Decode, class In, class Put>
  void MultiplyRuns(int64_t runs, Stored stored, Decode decode, In in, Put put) {
    for (int64_t output = 0; output < 16; ++output) {
      float sums[8 * kUnits] = {};
      for (int64_t i = 0; i < runs; ++i) {
        const Bf16Run of_weight = decode(stored(output, i));
        for (int64_t row = 0; row < 8 * kUnits; ++row) {
          const Bf16Run of_in = in(row, i);
          for (int e = 0; e < Bf16Run::kNumbers; ++e) sums[row] += of_weight.At(e) * of_in.At(e);
        }
      }
      for (int64_t row = 0; row < 8 * kUnits; ++row) put(row, output, sums[row]);
    }
  }
  /// Copies into memory of the block that go on while the thread does. EndCopies: those begun since the last one are a
  /// batch, also if there are none. AwaitCopies: all batches but the last `but` are there, for every thread. Here they come
  /// about no sooner than they are awaited.
  void BeginCopy(SixteenBytes* to, const SixteenBytes* from) { begun_.push_back({to, from}); }
  void EndCopies() { batches_.push_back(std::exchange(begun_, {})); }
  void AwaitCopies(size_t but) {
    while (batches_.size() > but) {
      for (const auto& [to, from] : batches_.front()) *to = *from;
      batches_.pop_front();
    }
  }
  /// Adds to memory of the block, while others do; within ForEach. Sums are whole numbers, so their order is no matter.
  static void Add(uint64_t* sum, uint64_t value) { *sum += value; }
  /// One more.
  static void Count(uint32_t* count) { ++*count; }
  /// Writes to memory of the block, while others do: one of the values is kept. Likewise.
  static void Keep(int32_t* kept, int32_t value) { *kept = value; }

 private:
  using Copies = std::vector<std::pair<SixteenBytes*, const SixteenBytes*>>;
  Copies begun_;
  std::deque<Copies> batches_;
};

}  // namespace swiftcache::engine::backend::cuda
