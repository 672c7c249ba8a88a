// SPDX-License-Identifier: Apache-2.0
// Which instructions the kernels may use.
//
//   Isa isa = BestIsa(options.max_isa);
#pragma once

#include <optional>
#include <string_view>

namespace swiftcache::engine::backend::cpu {

/// The better, the later. kBaseline: x86-64-v2 (SSSE3). kAvx2 brings FMA; kAvx512 the F, BW, DQ, VL and CD parts. The
/// VNNI ones multiply 8-bit integers; kAvx512Bf16 has it too, and kAmx has all of kAvx512Bf16. Processors of AVX-512 need
/// not have kAvxVnni.
enum class Isa { kBaseline, kAvx2, kAvxVnni, kAvx512, kAvx512Vnni, kAvx512Bf16, kAmx };

inline constexpr Isa kAllIsas[] = {Isa::kBaseline,   Isa::kAvx2,       Isa::kAvxVnni, Isa::kAvx512,
                                   Isa::kAvx512Vnni, Isa::kAvx512Bf16, Isa::kAmx};

/// As a limit: none.
inline constexpr Isa kHighestIsa = Isa::kAmx;

/// Whether products of bf16 have instructions of their own.
constexpr bool MultipliesBf16(Isa isa) { return isa >= Isa::kAvx512Bf16; }

const char* IsaName(Isa isa);
/// By IsaName; nothing: there is none of that name.
std::optional<Isa> IsaOfName(std::string_view name);

/// The best one that this machine has and that is not above `limit`. Of kAmx the process first asks Linux for leave.
Isa BestIsa(Isa limit = kHighestIsa);

}  // namespace swiftcache::engine::backend::cpu
