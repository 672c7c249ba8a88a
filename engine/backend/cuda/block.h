// SPDX-License-Identifier: Apache-2.0
// The threads of one block of a kernel, as the kernel's body sees them. A body is a function template over the block, so
// that the same source runs on a GPU (native/thread_block.h, many threads) and on the host (this one, a single thread).
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
  /// Adds to memory of the block, while others do; within ForEach. Sums are whole numbers, so their order is no matter.
  static void Add(uint64_t* sum, uint64_t value) { *sum += value; }
};

}  // namespace swiftcache::engine::backend::cuda
