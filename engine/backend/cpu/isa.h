// SPDX-License-Identifier: Apache-2.0
// Which instructions the kernels may use.
//
//   Isa isa = BestIsa(options.max_isa);
#pragma once

namespace swiftcache::engine::backend::cpu {

/// Ascending. kBaseline: x86-64-v2 (SSSE3). kAvx2 brings FMA; kAvx512 the F, BW, DQ, VL and CD parts.
enum class Isa { kBaseline, kAvx2, kAvx512, kAvx512Bf16 };

const char* IsaName(Isa isa);

/// The best one of this machine that is not above `limit`.
Isa BestIsa(Isa limit);

}  // namespace swiftcache::engine::backend::cpu
