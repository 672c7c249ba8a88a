// SPDX-License-Identifier: Apache-2.0
// What a processor's multiply-add instructions give when nothing else is asked of it.
//
//   const Peak peak = PeakOf(BestIsa(limit), Arithmetic::kInt8, 4);
//   pool.ParallelFor(pool.threads(), [&](int64_t, int) { peak.run(n); });   // n * peak.operations on each thread
#pragma once

#include <cstdint>

#include "engine/backend/cpu/isa.h"

namespace swiftcache {

/// What products are made of: f32 fused multiply-adds; dot products of two bf16; of four 8-bit integers.
enum class Arithmetic { kF32, kBf16, kInt8 };

const char* NameOf(Arithmetic arithmetic);

struct Peak {
  void (*run)(int64_t n) = nullptr;
  int64_t operations = 0;  // of one n; a multiply-add is two
};

/// The instructions that the engine's kernels use there for weights of `bits`. REQUIRES: the machine has `isa`, which is
/// kAvx2 or above, and for kBf16 MultipliesBf16(isa).
Peak PeakOf(engine::backend::cpu::Isa isa, Arithmetic arithmetic, int bits);

}  // namespace swiftcache
