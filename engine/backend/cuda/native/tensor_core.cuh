// SPDX-License-Identifier: Apache-2.0
// What a warp loads and multiplies in one instruction. Tests put another file of this name first, in which a host does it.
//
//   MultiplyUnit(sums, {a0, a1, a2, a3}, {b0, b1});
#pragma once

#include <cstdint>

#include "engine/backend/bf16.h"

namespace swiftcache::engine::backend::cuda {

/// sums += a * b, of 16 by 16 and 16 by 8 numbers of bf16 in pairs, sums in f32. Of thread 4 * g + t of a warp are, in this
/// order, rows g and g + 8 of a at columns 2 * t and 2 * t + 1, the same at columns 8 further on; rows 2 * t and 2 * t + 1
/// of b's column g, the same 8 rows further on; row g of the sums at columns 2 * t and 2 * t + 1, then row g + 8 (PTX ISA:
/// mma.m16n8k16). All threads of the warp call it together.
__device__ inline void MultiplyUnit(float (&sums)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/// Four squares of 8 by 8 numbers of bf16 out of the block's memory: lane i points at row i % 8 of square i / 8, on 16
/// bytes, and gets of each square, in their order, numbers 2 * (lane % 4) and the next of row lane / 4; turned, of column
/// lane / 4 (PTX ISA: ldmatrix). All threads of the warp call it together.
__device__ inline void LoadSquares(uint32_t (&to)[4], const Bf16* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(row)))
               : "memory");
}
__device__ inline void LoadSquaresTurned(uint32_t (&to)[4], const Bf16* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(row)))
               : "memory");
}

}  // namespace swiftcache::engine::backend::cuda
