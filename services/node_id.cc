// SPDX-License-Identifier: Apache-2.0
#include "services/node_id.h"

#include <sys/stat.h>
#include <unistd.h>

#include <fstream>

#include "absl/strings/str_cat.h"

namespace swiftcache::services {

std::string NodeId(const std::string& shm_dir, std::string_view protocol) {
  std::string boot_id;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot_id;
  struct stat folder {};
  stat(shm_dir.c_str(), &folder);
  std::ifstream uid_map("/proc/self/uid_map");
  return absl::StrCat(boot_id, ":", folder.st_dev, ":", folder.st_ino, ":",
                      absl::string_view(protocol.data(), protocol.size()), ":", OuterUser(uid_map, geteuid()));
}

int64_t OuterUser(std::istream& uid_map, int64_t uid) {
  for (int64_t inside = 0, outside = 0, length = 0; uid_map >> inside >> outside >> length;) {
    if (uid >= inside && uid - inside < length) return outside + (uid - inside);
  }
  return uid;
}

}  // namespace swiftcache::services
