// SPDX-License-Identifier: Apache-2.0
// The instruction sets that Highway compiles our kernels for; includes nothing, comes before Highway's headers.
#pragma once

// One per step of Isa: SSSE3 (part of x86-64-v2), AVX2 and AVX-512. What lies between brings these kernels nothing but
// compile time. Highway also passes over each file for plain x86-64, one lane at a time; we leave that pass empty.
#define HWY_DISABLED_TARGETS (HWY_SSE4 | HWY_AVX3_DL)

// Calls FUNCTION of the namespace that was compiled for ISA.
#define SWIFTCACHE_DISPATCH(ISA, FUNCTION, ...)                      \
  do {                                                               \
    if ((ISA) >= Isa::kAvx512) return N_AVX3::FUNCTION(__VA_ARGS__); \
    if ((ISA) >= Isa::kAvx2) return N_AVX2::FUNCTION(__VA_ARGS__);   \
    return N_SSSE3::FUNCTION(__VA_ARGS__);                           \
  } while (false)
