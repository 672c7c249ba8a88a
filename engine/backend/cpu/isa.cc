// SPDX-License-Identifier: Apache-2.0
#include "engine/backend/cpu/isa.h"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <iterator>

#include "hwy/highway.h"

namespace swiftcache::engine::backend::cpu {
namespace {

bool HasAvxVnni() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) != 0 && (eax & (1u << 4)) != 0;
}

bool HasAmx() {
  constexpr unsigned kBf16AndTiles = 1u << 22 | 1u << 24;
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0 || (edx & kBf16AndTiles) != kBf16AndTiles) return false;
  constexpr int kRequestPermission = 0x1023, kTileData = 18;  // arch_prctl(2), ARCH_REQ_XCOMP_PERM
  static const bool permitted = syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  return permitted;
}

bool MachineHas(Isa isa) {
  // Highway checks the operating system's register support as well as the CPU's bits.
  const auto targets = hwy::SupportedTargets();
  const bool avx2 = targets & HWY_AVX2, avx512 = targets & HWY_AVX3;
  switch (isa) {
    case Isa::kBaseline:
      return true;
    case Isa::kAvx2:
      return avx2;
    case Isa::kAvxVnni:
      return avx2 && HasAvxVnni();
    case Isa::kAvx512:
      return avx512;
    case Isa::kAvx512Vnni:
      return avx512 && __builtin_cpu_supports("avx512vnni");
    case Isa::kAvx512Bf16:
      return MachineHas(Isa::kAvx512Vnni) && __builtin_cpu_supports("avx512bf16");
    case Isa::kAmx:
      return MachineHas(Isa::kAvx512Bf16) && HasAmx();
  }
  return false;
}

}  // namespace

const char* IsaName(Isa isa) {
  switch (isa) {
    case Isa::kBaseline:
      return "baseline";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvxVnni:
      return "avx_vnni";
    case Isa::kAvx512:
      return "avx512";
    case Isa::kAvx512Vnni:
      return "avx512_vnni";
    case Isa::kAvx512Bf16:
      return "avx512_bf16";
    case Isa::kAmx:
      return "amx";
  }
  return "unknown";
}

std::optional<Isa> IsaOfName(std::string_view name) {
  for (const Isa isa : kAllIsas) {
    if (name == IsaName(isa)) return isa;
  }
  return std::nullopt;
}

Isa BestIsa(Isa limit) {
  for (auto isa = std::rbegin(kAllIsas); isa != std::rend(kAllIsas); ++isa) {
    if (*isa <= limit && MachineHas(*isa)) return *isa;
  }
  return Isa::kBaseline;
}

}  // namespace swiftcache::engine::backend::cpu
