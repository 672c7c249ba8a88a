// SPDX-License-Identifier: Apache-2.0
#include "engine/memory/start_turn.h"

#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/status_macros.h"
#include "engine/memory/own_file.h"
#include "glog/logging.h"

namespace swiftcache::engine::memory {
namespace {

constexpr size_t kMaxHolder = 200;  // bytes of its name

absl::StatusOr<bool> Lock(const UniqueFd& file, const std::string& path) {
  if (flock(file.get(), LOCK_EX | LOCK_NB) == 0) return true;
  if (errno == EWOULDBLOCK) return false;
  return absl::InvalidArgumentError(absl::StrCat(path, ": ", std::strerror(errno)));
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
  ASSIGN_OR_RETURN(UniqueFd file, OpenOwnFile(options.folder, path));
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
