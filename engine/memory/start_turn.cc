// SPDX-License-Identifier: Apache-2.0
#include "engine/memory/start_turn.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/status_macros.h"
#include "glog/logging.h"

namespace swiftcache::engine::memory {
namespace {

constexpr size_t kMaxHolder = 200;  // bytes of its name

absl::Status Bad(const std::string& path, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat(path, ": ", what));
}

absl::StatusOr<UniqueFd> OpenFile(const StartTurn::Options& options, const std::string& path) {
  if (mkdir(options.folder.c_str(), 0700) != 0 && errno != EEXIST) return Bad(options.folder, std::strerror(errno));
  UniqueFd file(open(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600));
  struct stat found = {};
  if (!file.ok() || fstat(file.get(), &found) != 0) return Bad(path, std::strerror(errno));
  if (!S_ISREG(found.st_mode) || found.st_uid != geteuid()) return Bad(path, "is not this user's file: remove it");
  return file;
}

absl::StatusOr<bool> Lock(const UniqueFd& file, const std::string& path) {
  if (flock(file.get(), LOCK_EX | LOCK_NB) == 0) return true;
  if (errno == EWOULDBLOCK) return false;
  return Bad(path, std::strerror(errno));
}

// For people: that it is cut short, or not there, does no harm.
void Write(const UniqueFd& file, const std::string& holder) {
  if (ftruncate(file.get(), 0) != 0) return;
  (void)!pwrite(file.get(), holder.data(), std::min(holder.size(), kMaxHolder), 0);
}

std::string Read(const UniqueFd& file) {
  char text[kMaxHolder];
  const ssize_t size = pread(file.get(), text, sizeof text, 0);
  return size > 0 ? absl::CHexEscape(absl::string_view(text, static_cast<size_t>(size))) : "another process";
}

}  // namespace

absl::StatusOr<StartTurn> StartTurn::Take(const Options& options, const std::function<bool()>& unwanted) {
  if (options.device_id.empty()) return StartTurn();
  const std::string path = absl::StrCat(options.folder, "/start-", options.device_id);
  ASSIGN_OR_RETURN(UniqueFd file, OpenFile(options, path));
  const absl::Time begin = absl::Now();
  for (int failed = 0;; ++failed) {
    ASSIGN_OR_RETURN(const bool locked, Lock(file, path));
    if (locked) {
      if (failed > 1) LOG(INFO) << options.holder << " has its turn to start, after " << absl::Now() - begin;
      break;
    }
    if (unwanted()) return absl::CancelledError(absl::StrCat("no longer waits for ", path));
    if (failed == 1) {  // by now the holder has written its name
      LOG(INFO) << options.holder << " waits for " << Read(file) << ", which starts on the same device: once that has "
                << "taken its memory, what is left is known (" << path << ")";
    }
    absl::SleepFor(kPoll);
  }
  Write(file, options.holder);
  return StartTurn(std::move(file));
}

}  // namespace swiftcache::engine::memory
