// SPDX-License-Identifier: Apache-2.0
#include "engine/backend/cpu/isa.h"

#include <algorithm>

#include "hwy/highway.h"

namespace swiftcache::engine::backend::cpu {
namespace {

Isa MachineIsa() {
  // Highway checks the operating system's register support as well as the CPU's bits.
  const auto targets = hwy::SupportedTargets();
  if (targets & HWY_AVX3) return __builtin_cpu_supports("avx512bf16") ? Isa::kAvx512Bf16 : Isa::kAvx512;
  return targets & HWY_AVX2 ? Isa::kAvx2 : Isa::kBaseline;
}

}  // namespace

const char* IsaName(Isa isa) {
  switch (isa) {
    case Isa::kBaseline:
      return "baseline";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvx512:
      return "avx512";
    case Isa::kAvx512Bf16:
      return "avx512_bf16";
  }
  return "unknown";
}

Isa BestIsa(Isa limit) { return std::min(limit, MachineIsa()); }

}  // namespace swiftcache::engine::backend::cpu
