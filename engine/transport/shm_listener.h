// SPDX-License-Identifier: Apache-2.0
// The socket in --shm_dir at which an engine's borrowers knock.
//
//   ASSIGN_OR_RETURN(ShmListener listener, ShmListener::Create(shm_dir, name));
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "engine/memory/sealed_memory.h"
#include "engine/transport/shm_socket.h"

namespace swiftcache::engine::transport {

/// Thread-safety: compatible. Ownership: owns the socket and its file, which it removes at the end.
/// Errors: Create: INVALID_ARGUMENT (path too long, shm_dir is no folder), PERMISSION_DENIED (the folder belongs to
/// another user, who could put a socket of their own there), ALREADY_EXISTS (a living engine of that name, which has
/// two seconds to end: the broker gives a name on a moment earlier), FAILED_PRECONDITION (a file that is no socket lies
/// where its own would); each names --shm_dir or --name. The socket of a dead process is replaced.
class ShmListener {
 public:
  static absl::StatusOr<ShmListener> Create(const std::string& dir, const std::string& name);
  ShmListener(ShmListener&& other) noexcept
      : path_(std::exchange(other.path_, "")), inode_(other.inode_), fd_(std::move(other.fd_)) {}
  ShmListener& operator=(ShmListener&&) = delete;
  ~ShmListener() { Close(); }
  /// Another engine may take the name.
  void Close();

  const std::string& path() const { return path_; }
  int fd() const { return fd_.get(); }
  enum class Got { kSocket, kNothing, kNoRoom, kStranger };
  /// kNoRoom: this process has no descriptor or memory left for it. kStranger: another user's process was hung up on.
  Got Accept(std::shared_ptr<ShmSocket>& socket);

 private:
  static absl::StatusOr<ShmListener> Listen(const std::string& dir, const std::string& path);
  ShmListener(std::string path, ino_t inode, memory::UniqueFd fd)
      : path_(std::move(path)), inode_(inode), fd_(std::move(fd)) {}

  std::string path_;
  ino_t inode_;
  memory::UniqueFd fd_;
};

}  // namespace swiftcache::engine::transport
