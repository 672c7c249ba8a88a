// SPDX-License-Identifier: Apache-2.0
// One end of a lease's channel: datagrams, with descriptors beside them, over a connected Unix SEQPACKET socket.
//
//   ASSIGN_OR_RETURN(auto socket, ShmSocket::Connect(path));
//   if (!socket->Send(EncodeShmMessage(hello), fds)) ...
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "engine/memory/sealed_memory.h"
#include "engine/transport/shm_message.h"

namespace swiftcache::engine::transport {

/// What one Receive got.
struct ShmDatagram {
  std::vector<std::byte> bytes;
  std::vector<memory::UniqueFd> fds;
};

/// PERMISSION_DENIED: the process at the other end of the connected socket is another user's than this one, as this
/// process sees users: a user of another user namespace, who has no name here, is another.
absl::Status CheckSameUser(int fd);

/// Thread-safety: safe. Ownership: owns the descriptor. Shared: the loop reads while other threads send, and whoever is
/// last closes. Errors: a channel that failed is shut down and ends as if the peer had closed it.
class ShmSocket {
 public:
  explicit ShmSocket(memory::UniqueFd fd) : fd_(std::move(fd)) {}
  /// Never waits. UNAVAILABLE: nobody listens there; INVALID_ARGUMENT: the path cannot be a socket's; PERMISSION_DENIED:
  /// as CheckSameUser.
  static absl::StatusOr<std::shared_ptr<ShmSocket>> Connect(const std::string& path);

  /// Sends one datagram. Never waits: what the kernel has no room for waits here, where there is a watch. A peer that
  /// leaves more than kMostUnsentBytes of it unread is given up. False: the channel is, or now is, at its end.
  bool Send(std::span<const std::byte> bytes, std::span<const int> fds = {}) ABSL_LOCKS_EXCLUDED(mutex_);
  static constexpr int64_t kMostUnsentBytes = 2 << 20;  // an OPEN of each lease that an engine can have
  /// `watch(true)`: something waits, and SendUnsent is to be called when there is room; false: nothing does any more.
  /// It calls nothing of this, and says whether it could. Null: from now on nothing more waits.
  void SetWatch(std::function<bool(bool)> watch) ABSL_LOCKS_EXCLUDED(mutex_);
  void SendUnsent() ABSL_LOCKS_EXCLUDED(mutex_);
  enum class Got { kDatagram, kNothing, kEnd, kTooLong };
  /// kTooLong: of more than `most_bytes`, or with more descriptors than any may bring.
  Got Receive(ShmDatagram& datagram, int64_t most_bytes = kMaxShmMessageBytes);
  /// Ends the channel at both sides; what was sent before can still be read.
  void Shutdown();
  int fd() const { return fd_.get(); }

 private:
  enum class Sent { kYes, kNoRoom, kEnd };
  Sent Give(std::span<const std::byte> bytes, std::span<const int> fds) const;
  bool Keep(std::span<const std::byte> bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const memory::UniqueFd fd_;
  absl::Mutex mutex_;  // held while a datagram is sent, which never waits: its order is that of the messages
  std::deque<std::vector<std::byte>> unsent_ ABSL_GUARDED_BY(mutex_);
  int64_t unsent_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  std::function<bool(bool)> watch_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace swiftcache::engine::transport
