// SPDX-License-Identifier: Apache-2.0
// A benchmark's flag --isa.
#pragma once

#include <optional>
#include <string>

#include "engine/backend/cpu/isa.h"
#include "tests/bench/fail.h"

namespace swiftcache {

/// Wanted of a flag that IsaOfName does not know.
inline constexpr char kWantedIsa[] = "amx, avx512_bf16, avx512_vnni, avx512, avx_vnni, avx2 or baseline";

/// Ends the program where there is none of that name.
inline engine::backend::cpu::Isa IsaOf(const std::string& name) {
  const std::optional<engine::backend::cpu::Isa> isa = engine::backend::cpu::IsaOfName(name);
  if (!isa) Fail("--isa is " + name + ", wanted " + kWantedIsa);
  return *isa;
}

}  // namespace swiftcache
