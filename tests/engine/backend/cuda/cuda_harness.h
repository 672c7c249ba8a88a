// SPDX-License-Identifier: Apache-2.0
// What tests of what stands upon a driver share.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "common/base/units.h"
#include "engine/backend/cuda/cuda_arena.h"
#include "tests/fakes/fake_cuda_driver.h"

namespace swiftcache::engine::backend::cuda {

inline constexpr int64_t kUnit = 64 * kKiB;  // the driver's granularity

/// Nothing was done that must not be, nothing is left.
inline void ExpectClean(const FakeCudaDriver& driver) {
  EXPECT_EQ(driver.Misuse(), "");
  EXPECT_EQ(driver.Leaks(), "");
}

inline std::unique_ptr<CudaArena> MakeArena(FakeCudaDriver& driver, const CudaArena::Options& options) {
  auto arena = CudaArena::Create(options, driver);
  EXPECT_TRUE(arena.ok()) << arena.status();
  return arena.ok() ? *std::move(arena) : nullptr;
}

inline bool AllAre(const std::byte* begin, int64_t bytes, std::byte value) {
  return std::all_of(begin, begin + bytes, [&](std::byte b) { return b == value; });
}

}  // namespace swiftcache::engine::backend::cuda
