// SPDX-License-Identifier: Apache-2.0
#include "engine/memory/own_file.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace swiftcache::engine::memory {
namespace {

absl::Status Bad(const std::string& path, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat(path, ": ", what));
}

}  // namespace

absl::StatusOr<UniqueFd> OpenOwnFile(const std::string& folder, const std::string& path) {
  if (mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) return Bad(folder, std::strerror(errno));
  UniqueFd file(open(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600));
  struct stat found = {};
  if (!file.ok() && errno == ENOENT) return absl::NotFoundError(absl::StrCat(path, ": its folder was removed"));
  if (!file.ok() || fstat(file.get(), &found) != 0) return Bad(path, std::strerror(errno));
  if (!S_ISREG(found.st_mode) || found.st_uid != geteuid()) return Bad(path, "is not this user's file: remove it");
  return file;
}

}  // namespace swiftcache::engine::memory
