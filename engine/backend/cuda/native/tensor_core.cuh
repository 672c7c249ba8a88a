// SPDX-License-Identifier: Apache-2.0
// What a warp multiplies in one instruction. Tests put another file of this name first, in which a host does it.
//
//   MultiplyUnit(sums, {a0, a1, a2, a3}, {b0, b1});
#pragma once

#include <cstdint>

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

}  // namespace swiftcache::engine::backend::cuda
