// SPDX-License-Identifier: Apache-2.0
// The processors that this process may use: what its affinity allows (taskset, cpusets of containers), as far as its
// control groups give it time for them (docker's --cpus, systemd's CPUQuota=).
//
//   const AllowedCores cores = FindAllowedCores();
#pragma once

#include <cstdint>
#include <string>

namespace swiftcache::engine::backend::cpu {

/// Thread-safety: a value.
struct AllowedCores {
  std::string set;  // of the affinity: "3" for the cores 0 and 1, hexadecimal; equal where the cores are
  int in_set = 1;
  int usable = 1;            // of these at once, by the quota; at least 1
  uint64_t quota_group = 0;  // the control group whose quota that is: engines with the same one share it; 0: none
};

/// Cores' worth of time, rounded up, that a control group allows; 0: no limit. `group`: it, unlike all others.
struct CoreQuota {
  int cores = 0;
  uint64_t group = 0;
};

/// What cannot be found out does not limit. `cgroup_root`: where the control groups are mounted, version 2 (another is
/// for tests); `cgroup`: this process's own, "/a/b". Errors: none.
AllowedCores FindAllowedCores();
/// The least of the quotas of the group and those above it.
CoreQuota FindQuota(const std::string& cgroup_root, std::string cgroup);

}  // namespace swiftcache::engine::backend::cpu
