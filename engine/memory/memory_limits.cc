// SPDX-License-Identifier: Apache-2.0
#include "engine/memory/memory_limits.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>
#include <string_view>

#include "common/base/units.h"

namespace swiftcache::engine::memory {
namespace {

// File names of one version of the control groups.
struct CgroupNames {
  const char* limit;
  const char* usage;
  const char* inactive_key;  // in memory.stat
};
constexpr CgroupNames kV2 = {"memory.max", "memory.current", "inactive_file"};
constexpr CgroupNames kV1 = {"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"};

// "max" and anything else that is not a number is no limit.
std::optional<int64_t> ReadNumber(const std::string& path) {
  std::ifstream file(path);
  int64_t value = 0;
  if (!(file >> value) || value < 0) return std::nullopt;
  return value;
}

// The number after `key` in a file of "key value ..." lines.
std::optional<int64_t> ReadKey(const std::string& path, const std::string& key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string word;
    int64_t value = 0;
    if (words >> word && word == key && words >> value) return value;
  }
  return std::nullopt;
}

void Limit(MemoryHeadroom& room, int64_t bytes, const std::string& by) {
  if (bytes < room.bytes) room = {std::max<int64_t>(bytes, 0), by};
}

void LimitByGroup(MemoryHeadroom& room, const std::string& folder, const CgroupNames& names) {
  const std::string limit_file = folder + "/" + names.limit;
  const std::optional<int64_t> limit = ReadNumber(limit_file);
  const std::optional<int64_t> usage = ReadNumber(folder + "/" + names.usage);
  if (!limit || !usage) return;
  const int64_t reclaimable = ReadKey(folder + "/memory.stat", names.inactive_key).value_or(0);
  Limit(room, *limit - *usage + std::min(reclaimable, *usage), limit_file);
}

// The group and its ancestors. Inside a container the path may be the host's: folders that are absent do not limit.
void LimitByGroupAndAncestors(MemoryHeadroom& room, const std::string& root, std::string path,
                              const CgroupNames& names) {
  for (;;) {
    while (!path.empty() && path.back() == '/') path.pop_back();
    LimitByGroup(room, root + path, names);
    if (path.empty()) return;
    path.resize(path.find_last_of('/') == std::string::npos ? 0 : path.find_last_of('/'));
  }
}

bool NamesMemory(std::string_view controllers) {
  std::istringstream list{std::string(controllers)};
  for (std::string name; std::getline(list, name, ',');) {
    if (name == "memory") return true;
  }
  return false;
}

}  // namespace

MemoryHeadroom ReadMemoryHeadroom(const MemorySources& sources) {
  MemoryHeadroom room{std::numeric_limits<int64_t>::max(), "nothing"};
  if (const auto kib = ReadKey(sources.meminfo, "MemAvailable:")) Limit(room, *kib * kKiB, sources.meminfo);
  std::ifstream groups(sources.self_cgroup);  // lines of "id:controllers:path"
  for (std::string line; std::getline(groups, line);) {
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1), path = line.substr(second + 1);
    if (controllers.empty()) {
      LimitByGroupAndAncestors(room, sources.cgroup_root, path, kV2);
    } else if (NamesMemory(controllers)) {
      LimitByGroupAndAncestors(room, sources.cgroup_root + "/memory", path, kV1);
    }
  }
  return room;
}

}  // namespace swiftcache::engine::memory
