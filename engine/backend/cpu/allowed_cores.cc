// SPDX-License-Identifier: Apache-2.0
#include "engine/backend/cpu/allowed_cores.h"

#include <sched.h>
#include <sys/stat.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace swiftcache::engine::backend::cpu {
namespace {

// /proc/self/cgroup of version 2 has one line: "0::/system.slice/swiftcache-engine@chat.service".
std::string OwnCgroup() {
  std::ifstream file("/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    if (absl::StartsWith(line, "0::")) return line.substr(3);
  }
  return "";
}

// cpu.max: "max 100000", or microseconds of processor time in a period of microseconds.
double QuotaOf(const std::string& folder) {
  std::ifstream file(folder + "/cpu.max");
  double quota = 0, period = 0;
  return file >> quota >> period && period > 0 ? quota / period : 0;
}

// Containers see one group under different paths; its inode is the same.
uint64_t GroupOf(const std::string& folder) {
  struct stat found = {};
  return stat(folder.c_str(), &found) == 0 ? found.st_ino : 0;
}

}  // namespace

CoreQuota FindQuota(const std::string& cgroup_root, std::string cgroup) {
  double least = 0;
  uint64_t group = 0;
  for (;; cgroup.resize(cgroup.rfind('/'))) {
    const double quota = QuotaOf(cgroup_root + cgroup);
    if (quota > 0 && (least == 0 || quota < least)) {
      least = quota;
      group = GroupOf(cgroup_root + cgroup);
    }
    if (cgroup.find('/') == cgroup.npos) return {.cores = static_cast<int>(std::ceil(least)), .group = group};
  }
}

AllowedCores FindAllowedCores() {
  constexpr int kMaxCores = 8192;
  std::vector<cpu_set_t> sets(kMaxCores / CPU_SETSIZE);
  const size_t bytes = sets.size() * sizeof(cpu_set_t);
  AllowedCores cores;
  if (sched_getaffinity(0, bytes, sets.data()) != 0) {
    cores.in_set = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
    cores.set = absl::StrCat("all", cores.in_set);
  } else {
    cores.in_set = CPU_COUNT_S(bytes, sets.data());
    for (int first = kMaxCores - 4; first >= 0; first -= 4) {
      int digit = 0;
      for (int core = 0; core < 4; ++core) digit |= CPU_ISSET_S(first + core, bytes, sets.data()) ? 1 << core : 0;
      if (digit != 0 || !cores.set.empty()) cores.set += "0123456789abcdef"[digit];
    }
  }
  const CoreQuota quota = FindQuota("/sys/fs/cgroup", OwnCgroup());
  cores.usable = quota.cores == 0 ? cores.in_set : std::min(cores.in_set, quota.cores);
  cores.quota_group = quota.group;
  return cores;
}

}  // namespace swiftcache::engine::backend::cpu
