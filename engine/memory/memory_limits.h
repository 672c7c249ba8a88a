// SPDX-License-Identifier: Apache-2.0
// How much memory this process may still take: the least of what the kernel has and what its control groups allow.
//
//   MemoryHeadroom room = ReadMemoryHeadroom(MemorySources());
//   if (bytes > room.bytes) return Exhausted(bytes, room.bytes, room.limited_by);
#pragma once

#include <cstdint>
#include <string>

namespace swiftcache::engine::memory {

/// Where the kernel says it; tests hand in files of their own.
struct MemorySources {
  std::string meminfo = "/proc/meminfo";
  std::string self_cgroup = "/proc/self/cgroup";
  std::string cgroup_root = "/sys/fs/cgroup";
};

struct MemoryHeadroom {
  int64_t bytes = 0;
  std::string limited_by;  // the file that sets the limit
};

/// MemAvailable, and for cgroup v2 and v1 of this process and of each of its ancestors: limit - usage + inactive page
/// cache. A source that cannot be read does not limit.
/// Thread-safety: safe. Errors: none. Units: bytes; INT64_MAX where nothing limits.
MemoryHeadroom ReadMemoryHeadroom(const MemorySources& sources);

}  // namespace swiftcache::engine::memory
