// SPDX-License-Identifier: Apache-2.0
#include "engine/transport/shm_listener.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/clock.h"
#include "common/base/status_macros.h"
#include "engine/transport/shm_address.h"
#include "glog/logging.h"

namespace swiftcache::engine::transport {
namespace {

constexpr int kBacklog = 4096;  // a connection for each lease: all that a broker lets an engine lend may come at once
constexpr absl::Duration kEndPatience = absl::Seconds(2), kAskAgain = absl::Milliseconds(50);

absl::Status BadDir(const std::string& dir, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat("--shm_dir ", dir, ": ", what, ": name a folder that can be written"));
}

// Whoever may rename files there could stand in for a donor.
absl::Status CheckOwner(const std::string& dir, const struct stat& file) {
  if (file.st_uid != geteuid() && file.st_uid != 0) {
    return absl::PermissionDeniedError(absl::StrCat("--shm_dir ", dir, " belongs to user ", file.st_uid, ", not to ",
                                                    geteuid(), " or root: name another folder"));
  }
  if ((file.st_mode & (S_IWGRP | S_IWOTH)) != 0 && (file.st_mode & S_ISVTX) == 0) {
    LOG(WARNING) << "--shm_dir " << dir << " can be written by others: anybody who can may pass for a donor there";
  }
  return absl::OkStatus();
}

// The folder, made where it is missing, and locked: only one engine at a time looks for sockets and binds its own.
absl::StatusOr<memory::UniqueFd> LockDir(const std::string& dir) {
  if (mkdir(dir.c_str(), 0700) != 0 && errno != EEXIST) return BadDir(dir, std::strerror(errno));
  memory::UniqueFd fd(open(dir.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  struct stat file = {};
  if (!fd.ok() || fstat(fd.get(), &file) != 0) return BadDir(dir, std::strerror(errno));
  RETURN_IF_ERROR(CheckOwner(dir, file));
  if (flock(fd.get(), LOCK_EX) != 0) return BadDir(dir, std::strerror(errno));
  return fd;
}

// What connecting says about the socket's owner: 0 where it is there.
int Probe(const sockaddr_un& address) {
  const memory::UniqueFd fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.ok()) return errno;
  return connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 ? 0 : errno;
}

// A socket that nobody listens at refuses connections.
absl::Status RemoveStale(const std::string& path, const sockaddr_un& address) {
  struct stat file = {};
  if (lstat(path.c_str(), &file) != 0) return absl::OkStatus();
  if (!S_ISSOCK(file.st_mode)) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, " exists and is no socket: remove it, or change --shm_dir"));
  }
  if (Probe(address) != ECONNREFUSED) {
    return absl::AlreadyExistsError(
        absl::StrCat("an engine is listening at ", path, ": give this one another --name, or another --shm_dir"));
  }
  LOG(INFO) << "replacing " << path << ", whose engine is dead";
  unlink(path.c_str());
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ShmListener> ShmListener::Create(const std::string& dir, const std::string& name) {
  const RealClock clock;
  const absl::Time deadline = clock.Now() + kEndPatience;
  for (;;) {
    absl::StatusOr<ShmListener> listener = Listen(dir, ShmSocketPath(dir, name));
    if (!absl::IsAlreadyExists(listener.status()) || clock.Now() >= deadline) return listener;
    absl::SleepFor(kAskAgain);
  }
}

absl::StatusOr<ShmListener> ShmListener::Listen(const std::string& dir, const std::string& path) {
  ASSIGN_OR_RETURN(const sockaddr_un address, ShmAddress(path));
  ASSIGN_OR_RETURN(const memory::UniqueFd lock, LockDir(dir));
  RETURN_IF_ERROR(RemoveStale(path, address));
  memory::UniqueFd fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  struct stat file = {};
  if (!fd.ok() || bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
      listen(fd.get(), kBacklog) != 0 || lstat(path.c_str(), &file) != 0) {
    return BadDir(dir, absl::StrCat("cannot listen at ", path, " (", std::strerror(errno), ")"));
  }
  return ShmListener(path, file.st_ino, std::move(fd));
}

// Only what is still ours: an operator may have removed it and started another engine.
void ShmListener::Close() {
  struct stat file = {};
  if (fd_.ok() && lstat(path_.c_str(), &file) == 0 && file.st_ino == inode_) unlink(path_.c_str());
  fd_ = memory::UniqueFd();
}

ShmListener::Got ShmListener::Accept(std::shared_ptr<ShmSocket>& socket) {
  memory::UniqueFd fd(accept4(fd_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (fd.ok()) {
    if (const absl::Status same = CheckSameUser(fd.get()); !same.ok()) {
      LOG_EVERY_T(WARNING, 10) << path_ << ": " << same.message();
      return Got::kStranger;
    }
    socket = std::make_shared<ShmSocket>(std::move(fd));
    return Got::kSocket;
  }
  return errno == EAGAIN || errno == ECONNABORTED || errno == EINTR ? Got::kNothing : Got::kNoRoom;
}

}  // namespace swiftcache::engine::transport
