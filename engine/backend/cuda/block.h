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
  /// c (=|+=) a * b in units of 16 by 16, with sums in f32. a: [rows][depth], c: [rows][cols]; all multiples of 16. b:
  /// [cols][depth] where `transposed`, else [depth][cols].
  template <bool transposed>
  void Multiply(const BlockMatrix<const Bf16>& a, const BlockMatrix<const Bf16>& b, const BlockMatrix<float>& c,
                int64_t rows, int64_t cols, int64_t depth, bool add) {
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t j = 0; j < cols; ++j) {
        float sum = add ? c.data[r * c.stride + j] : 0;
        for (int64_t d = 0; d < depth; ++d) {
          const Bf16 of_b = transposed ? b.data[j * b.stride + d] : b.data[d * b.stride + j];
          sum += FromBf16(a.data[r * a.stride + d]) * FromBf16(of_b);
        }
        c.data[r * c.stride + j] = sum;
      }
    }
  }
  /// put(row, output, sum of weight(output, i) * in(row, i) over the runs i of [0, runs)), with sums in f32, for each of
  /// 8 * kUnits rows and of 16 outputs. The order of a sum is the block's own, and the same for each row and kUnits.
  template <int kUnits, class Weight, class In, class Put>
  void MultiplyRuns(int64_t runs, Weight weight, In in, Put put) {
    for (int64_t output = 0; output < 16; ++output) {
      float sums[8 * kUnits] = {};
      for (int64_t i = 0; i < runs; ++i) {
        const Bf16Run of_weight = weight(output, i);
        for (int64_t row = 0; row < 8 * kUnits; ++row) {
          const Bf16Run of_in = in(row, i);
          for (int e = 0; e < Bf16Run::kNumbers; ++e) sums[row] += of_weight.At(e) * of_in.At(e);
        }
      }
      for (int64_t row = 0; row < 8 * kUnits; ++row) put(row, output, sums[row]);
    }
  }
  /// Copies into memory of the block that go on while the thread does. EndCopies: those begun since the last one are a
  /// batch. AwaitCopies: all batches are there, for every thread; with `but_the_last`, all others. Here they come about no
  /// sooner than they are awaited.
  void BeginCopy(SixteenBytes* to, const SixteenBytes* from) { begun_.push_back({to, from}); }
  void EndCopies() { batches_.push_back(std::exchange(begun_, {})); }
  void AwaitCopies(bool but_the_last) {
    while (batches_.size() > (but_the_last ? 1 : 0)) {
      for (const auto& [to, from] : batches_.front()) *to = *from;
      batches_.pop_front();
    }
  }
  /// Adds to memory of the block, while others do; within ForEach. Sums are whole numbers, so their order is no matter.
  static void Add(uint64_t* sum, uint64_t value) { *sum += value; }

 private:
  using Copies = std::vector<std::pair<SixteenBytes*, const SixteenBytes*>>;
  Copies begun_;
  std::deque<Copies> batches_;
};

}  // namespace swiftcache::engine::backend::cuda
