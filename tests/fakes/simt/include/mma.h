// SPDX-License-Identifier: Apache-2.0
// wmma's matrices of 16 by 16: each lane holds eight numbers, and which ones is nobody's business, as with CUDA.
#pragma once

#include "tests/fakes/simt/include/cuda_bf16.h"

namespace nvcuda::wmma {

struct matrix_a {};
struct matrix_b {};
struct accumulator {};
struct row_major {};
struct col_major {};
enum layout_t { mem_row_major };

template <class Use, int kRows, int kCols, int kDepth, class T, class Layout = row_major>
struct fragment {
  static_assert(kRows == 16 && kCols == 16 && kDepth == 16);
  using layout = Layout;
  static constexpr int num_elements = 8;
  T x[num_elements];
};

/// The row and column of element e of a lane.
inline int RowOf(unsigned lane, int e) { return static_cast<int>(lane * 8 + e) / 16; }
inline int ColOf(unsigned lane, int e) { return static_cast<int>(lane * 8 + e) % 16; }

/// All lanes come with the same place, on 32 bytes, with rows on 16.
template <class T>
void Agree(const T* at, unsigned stride, const char* what) {
  if (reinterpret_cast<uintptr_t>(at) % 32 != 0 || stride * sizeof(T) % 16 != 0) {
    swiftcache::simt::Die("a matrix that is not on 32 bytes, or whose rows are not on 16");
  }
  swiftcache::simt::MeetWith(~0u, what, at, [](auto& lanes) {
    for (const auto* const lane : lanes) {
      if (*lane != *lanes[0]) swiftcache::simt::Die("lanes of a warp come with different matrices");
    }
  });
}

template <class Fragment, class T>
void load_matrix_sync(Fragment& to, const T* from, unsigned stride, layout_t = mem_row_major) {
  Agree(from, stride, "load_matrix_sync");
  constexpr bool kAcross = std::is_same_v<typename Fragment::layout, col_major>;
  const unsigned lane = threadIdx.x % 32;
  for (int e = 0; e < to.num_elements; ++e) {
    const int row = RowOf(lane, e), col = ColOf(lane, e);
    to.x[e] = kAcross ? from[col * stride + row] : from[row * stride + col];
  }
}

template <class Fragment>
void store_matrix_sync(float* to, const Fragment& from, unsigned stride, layout_t) {
  Agree(to, stride, "store_matrix_sync");
  const unsigned lane = threadIdx.x % 32;
  for (int e = 0; e < from.num_elements; ++e) to[RowOf(lane, e) * stride + ColOf(lane, e)] = from.x[e];
}

template <class Fragment>
void fill_fragment(Fragment& fragment, float value) {
  for (float& x : fragment.x) x = value;
}

template <class C, class A, class B>
void mma_sync(C& d, const A& a, const B& b, const C& c) {
  struct Lane {
    C* d;
    const A* a;
    const B* b;
    const C* c;
  };
  swiftcache::simt::MeetWith(~0u, "mma_sync", Lane{&d, &a, &b, &c}, [](auto& lanes) {
    float of_a[16][16], of_b[16][16];
    for (unsigned lane = 0; lane < 32; ++lane) {
      for (int e = 0; e < 8; ++e) {
        of_a[RowOf(lane, e)][ColOf(lane, e)] = lanes[lane]->a->x[e];
        of_b[RowOf(lane, e)][ColOf(lane, e)] = lanes[lane]->b->x[e];
      }
    }
    for (unsigned lane = 0; lane < 32; ++lane) {
      for (int e = 0; e < 8; ++e) {
        float sum = lanes[lane]->c->x[e];
        for (int k = 0; k < 16; ++k) sum += of_a[RowOf(lane, e)][k] * of_b[k][ColOf(lane, e)];
        lanes[lane]->d->x[e] = sum;
      }
    }
  });
}

}  // namespace nvcuda::wmma
