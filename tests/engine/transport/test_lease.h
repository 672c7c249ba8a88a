// SPDX-License-Identifier: Apache-2.0
// The lease that most tests are about, and bytes to store in it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "common/base/units.h"
#include "engine/kv/lease_id.h"

namespace swiftcache::engine::transport {

inline constexpr kv::LeaseId kLease{7};
inline constexpr int64_t kLeaseBytes = 2 * kMiB;

inline std::vector<std::byte> Pattern(int64_t bytes, uint64_t seed) {
  std::vector<std::byte> pattern(bytes);
  std::mt19937_64 random(seed);
  for (std::byte& b : pattern) b = static_cast<std::byte>(random());
  return pattern;
}

}  // namespace swiftcache::engine::transport
