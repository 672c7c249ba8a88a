// SPDX-License-Identifier: Apache-2.0
// Numbers that whoever runs a test may set.
//
//   const uint64_t seeds = FromEnvironment("SIM_SEEDS").value_or(10'000);
#pragma once

#include <cstdint>
#include <cstdlib>
#include <optional>

namespace swiftcache {

inline std::optional<uint64_t> FromEnvironment(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr) return std::nullopt;
  return std::strtoull(value, nullptr, 10);
}

}  // namespace swiftcache
