// SPDX-License-Identifier: Apache-2.0
// Sizes in bytes, and arithmetic on them that reports overflow.
//
//   std::optional<int64_t> bytes = CheckedMul(num_blocks, block_bytes);
#pragma once

#include <cstdint>
#include <optional>

namespace swiftcache {

inline constexpr int64_t kKiB = 1024;
inline constexpr int64_t kMiB = 1024 * kKiB;
inline constexpr int64_t kGiB = 1024 * kMiB;

/// a / b rounded up. REQUIRES: a >= 0, b > 0.
constexpr int64_t CeilDiv(int64_t a, int64_t b) { return a / b + (a % b != 0); }

/// a * b, or nothing if it overflows int64_t.
constexpr std::optional<int64_t> CheckedMul(int64_t a, int64_t b) {
  int64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product)) return std::nullopt;
  return product;
}

/// a + b, or nothing if it overflows int64_t.
constexpr std::optional<int64_t> CheckedAdd(int64_t a, int64_t b) {
  int64_t sum = 0;
  if (__builtin_add_overflow(a, b, &sum)) return std::nullopt;
  return sum;
}

}  // namespace swiftcache
