// SPDX-License-Identifier: Apache-2.0
#include "engine/transport/shm_address.h"

#include <unistd.h>

#include <cstring>
#include <filesystem>

#include "absl/strings/str_cat.h"

namespace swiftcache::engine::transport {

std::string DefaultShmDir() { return absl::StrCat("/tmp/swiftcache-", geteuid()); }

std::string ShmSocketPath(std::string_view dir, std::string_view name) {
  std::string path(dir);
  path += '/';
  for (const char c : name) c == '/' ? path += "%2F" : c == '%' ? path += "%25" : path += c;
  return path + ".sock";
}

std::string ShmPeerPath(const std::string& own, const std::string& theirs) {
  return std::filesystem::path(own).replace_filename(std::filesystem::path(theirs).filename());
}

absl::StatusOr<sockaddr_un> ShmAddress(const std::string& path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof address.sun_path) {
    return absl::InvalidArgumentError(absl::StrCat("the socket '", path, "' has a path of ", path.size(),
                                                   " bytes; 1 to ", sizeof address.sun_path - 1,
                                                   " are allowed: give a shorter --shm_dir or --name"));
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

}  // namespace swiftcache::engine::transport
