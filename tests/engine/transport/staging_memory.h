// SPDX-License-Identifier: Apache-2.0
// What a peer may send as the memory that stores go through: as it should be, and not.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>

#include "common/base/units.h"
#include "engine/memory/sealed_memory.h"

namespace swiftcache::engine::transport {

inline constexpr int64_t kStagingBytes = 64 * kKiB;

/// Memory that whoever made it can pull away.
inline memory::UniqueFd PlainMemory(int64_t bytes) {
  memory::UniqueFd fd(memfd_create("hostile", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_EQ(ftruncate(fd.get(), bytes), 0);
  return fd;
}

/// Staging memory as it should be.
struct GoodStaging {
  explicit GoodStaging(int64_t bytes = kStagingBytes) : memory(memory::Mapping::Reserve(bytes).value()) {
    fd = memory::CreateSealedMemory("staging", memory.base(), bytes).value();
  }
  memory::Mapping memory;
  memory::UniqueFd fd;
};

}  // namespace swiftcache::engine::transport
