// SPDX-License-Identifier: Apache-2.0
#include "engine/transport/shm_socket.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "engine/transport/shm_address.h"
#include "glog/logging.h"

namespace swiftcache::engine::transport {
namespace {

constexpr size_t kMaxFds = 253;       // the kernel's SCM_MAX_FD
constexpr int64_t kBytesBeside = 64;  // that a message takes while it waits

// Every descriptor that came, wanted or not: what is not taken out of here is closed.
std::vector<memory::UniqueFd> TakeFds(msghdr& header) {
  std::vector<memory::UniqueFd> fds;
  for (cmsghdr* part = CMSG_FIRSTHDR(&header); part != nullptr; part = CMSG_NXTHDR(&header, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(part) + i * sizeof(int), sizeof(int));
      fds.emplace_back(fd);
    }
  }
  return fds;
}

}  // namespace

absl::Status CheckSameUser(int fd) {
  ucred peer = {};
  socklen_t size = sizeof peer;
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == geteuid()) return absl::OkStatus();
  return absl::PermissionDeniedError(
      absl::StrCat("process ", peer.pid, " at the other end of a lease's socket is of user ", peer.uid, ", not of ",
                   geteuid(), ": run engines that share memory as one user"));
}

absl::StatusOr<std::shared_ptr<ShmSocket>> ShmSocket::Connect(const std::string& path) {
  ASSIGN_OR_RETURN(const sockaddr_un address, ShmAddress(path));
  memory::UniqueFd fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.ok() || connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    return absl::UnavailableError(absl::StrCat("no donor answers at ", path, " (", std::strerror(errno), ")"));
  }
  RETURN_IF_ERROR(CheckSameUser(fd.get()));
  return std::make_shared<ShmSocket>(std::move(fd));
}

ShmSocket::Sent ShmSocket::Give(std::span<const std::byte> bytes, std::span<const int> fds) const {
  CHECK_LE(fds.size(), kMaxFds);
  iovec part = {const_cast<std::byte*>(bytes.data()), bytes.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxFds * sizeof(int))] = {};
  msghdr header = {};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  if (!fds.empty()) {
    header.msg_control = control;
    header.msg_controllen = CMSG_SPACE(fds.size_bytes());
    cmsghdr* const rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(fds.size_bytes());
    std::memcpy(CMSG_DATA(rights), fds.data(), fds.size_bytes());
  }
  ssize_t sent = 0;
  do {
    sent = sendmsg(fd_.get(), &header, MSG_NOSIGNAL | MSG_DONTWAIT);
  } while (sent < 0 && errno == EINTR);
  if (sent == static_cast<ssize_t>(bytes.size())) return Sent::kYes;
  return sent < 0 && errno == EAGAIN ? Sent::kNoRoom : Sent::kEnd;
}

bool ShmSocket::Send(std::span<const std::byte> bytes, std::span<const int> fds) {
  absl::MutexLock lock(&mutex_);
  const Sent sent = unsent_.empty() ? Give(bytes, fds) : Sent::kNoRoom;
  if (sent == Sent::kYes || (sent == Sent::kNoRoom && fds.empty() && Keep(bytes))) return true;
  Shutdown();
  return false;
}

bool ShmSocket::Keep(std::span<const std::byte> bytes) {
  const int64_t size = static_cast<int64_t>(bytes.size()) + kBytesBeside;
  if (!watch_ || size > kMostUnsentBytes - unsent_bytes_ || (unsent_.empty() && !watch_(true))) return false;
  unsent_.emplace_back(bytes.begin(), bytes.end());
  unsent_bytes_ += size;
  return true;
}

void ShmSocket::SetWatch(std::function<bool(bool)> watch) {
  absl::MutexLock lock(&mutex_);
  watch_ = std::move(watch);
}

void ShmSocket::SendUnsent() {
  absl::MutexLock lock(&mutex_);
  while (!unsent_.empty()) {
    const Sent sent = Give(unsent_.front(), {});
    if (sent == Sent::kNoRoom) return;
    if (sent == Sent::kEnd) {
      Shutdown();
      break;
    }
    unsent_bytes_ -= static_cast<int64_t>(unsent_.front().size()) + kBytesBeside;
    unsent_.pop_front();
  }
  unsent_.clear();
  unsent_bytes_ = 0;
  if (watch_) (void)watch_(false);
}

// Room for the longest is not zeroed: most datagrams are short.
ShmSocket::Got ShmSocket::Receive(ShmDatagram& datagram, int64_t most_bytes) {
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxFds * sizeof(int))];
  const auto room = std::make_unique_for_overwrite<std::byte[]>(most_bytes);
  iovec part = {room.get(), static_cast<size_t>(most_bytes)};
  msghdr header = {};
  ssize_t received = 0;
  do {  // ECONNRESET comes once, before what the peer sent and its end: it left something of ours unread
    header = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    received = recvmsg(fd_.get(), &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  } while (received < 0 && (errno == EINTR || errno == ECONNRESET));
  if (received < 0) return errno == EAGAIN ? Got::kNothing : Got::kEnd;
  datagram.fds = TakeFds(header);
  if (received == 0) return Got::kEnd;
  datagram.bytes.assign(room.get(), room.get() + received);
  return (header.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0 ? Got::kTooLong : Got::kDatagram;
}

void ShmSocket::Shutdown() { (void)shutdown(fd_.get(), SHUT_RDWR); }

}  // namespace swiftcache::engine::transport
