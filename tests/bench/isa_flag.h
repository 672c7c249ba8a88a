// SPDX-License-Identifier: Apache-2.0
// The value of a benchmark's flag --isa.
//
//   const std::optional<Isa> isa = ParseIsa("avx2");
#pragma once

#include <optional>
#include <string>

#include "engine/backend/cpu/isa.h"

namespace swiftcache {

inline constexpr char kWantedIsa[] = "avx512_bf16, avx512, avx2 or baseline";

inline std::optional<engine::backend::cpu::Isa> ParseIsa(const std::string& name) {
  using engine::backend::cpu::Isa;
  for (const Isa isa : {Isa::kBaseline, Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Bf16}) {
    if (name == engine::backend::cpu::IsaName(isa)) return isa;
  }
  return std::nullopt;
}

}  // namespace swiftcache
