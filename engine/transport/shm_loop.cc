// SPDX-License-Identifier: Apache-2.0
#include "engine/transport/shm_loop.h"

#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/sync/urgent_thread.h"
#include "glog/logging.h"

namespace swiftcache::engine::transport {
namespace {

constexpr uint64_t kWake = 0, kListener = 1;
constexpr int kEventsARound = 64, kAcceptsARound = 16;
constexpr int kNoRoomPauseMs = 100;  // before asking again whether there are descriptors

absl::Status Watch(int epoll, int operation, int fd, uint64_t id, uint32_t events = EPOLLIN) {
  epoll_event event = {.events = events, .data = {.u64 = id}};
  if (epoll_ctl(epoll, operation, fd, &event) == 0) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("the kernel refused to watch a socket (", std::strerror(errno), ")"));
}

}  // namespace

absl::Status ShmPeer::OnDatagram(ShmDatagram datagram) {
  ASSIGN_OR_RETURN(ShmMessage message, ParseShmMessage(datagram.bytes));
  return OnMessage(std::move(message), std::move(datagram.fds));
}

absl::StatusOr<std::unique_ptr<ShmLoop>> ShmLoop::Create(ShmListener& listener, Meet meet) {
  memory::UniqueFd epoll(epoll_create1(EPOLL_CLOEXEC)), wake(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!epoll.ok() || !wake.ok()) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no descriptors are left (", std::strerror(errno), "): raise the limit on open files"));
  }
  RETURN_IF_ERROR(Watch(epoll.get(), EPOLL_CTL_ADD, wake.get(), kWake));
  RETURN_IF_ERROR(Watch(epoll.get(), EPOLL_CTL_ADD, listener.fd(), kListener));
  return std::unique_ptr<ShmLoop>(new ShmLoop(listener, std::move(meet), std::move(epoll), std::move(wake)));
}

ShmLoop::ShmLoop(ShmListener& listener, Meet meet, memory::UniqueFd epoll, memory::UniqueFd wake)
    : listener_(listener), meet_(std::move(meet)), epoll_(std::move(epoll)), wake_(std::move(wake)) {
  thread_ = std::thread([this] {
    pthread_setname_np(pthread_self(), "channels");
    SetUrgent();  // where it is not allowed, the coordinator says so
    Run();
  });
}

absl::Status ShmLoop::Add(std::shared_ptr<ShmLoopPeer> peer) {
  ShmSocket& socket = peer->socket();
  const int fd = socket.fd();
  uint64_t id = 0;
  {
    absl::MutexLock lock(&mutex_);
    id = next_id_++;
    peers_[id] = peer;
  }
  socket.SetWatch([this, fd, id](bool sends) {
    return Watch(epoll_.get(), EPOLL_CTL_MOD, fd, id, sends ? EPOLLIN | EPOLLOUT : EPOLLIN).ok();
  });
  const absl::Status watched = Watch(epoll_.get(), EPOLL_CTL_ADD, fd, id);
  if (watched.ok()) return watched;
  socket.SetWatch(nullptr);
  absl::MutexLock lock(&mutex_);
  peers_.erase(id);
  return watched;
}

void ShmLoop::Stop() {
  if (thread_.joinable()) {
    stopping_ = true;
    (void)eventfd_write(wake_.get(), 1);
    thread_.join();
    listener_.Close();
  }
  absl::MutexLock lock(&mutex_);
  for (const auto& [id, peer] : peers_) peer->socket().SetWatch(nullptr);
  peers_.clear();
}

void ShmLoop::Run() {
  epoll_event events[kEventsARound];
  while (!stopping_) {
    const int count = epoll_wait(epoll_.get(), events, kEventsARound, listening_ ? -1 : kNoRoomPauseMs);
    if (!listening_) Listen(true);
    for (int i = 0; i < count && !stopping_; ++i) Handle(events[i].data.u64, events[i].events);
  }
}

void ShmLoop::Handle(uint64_t id, uint32_t events) {
  if (id == kWake) return;
  if (id == kListener) return AcceptSome();
  std::shared_ptr<ShmLoopPeer> peer;
  {
    absl::MutexLock lock(&mutex_);
    auto it = peers_.find(id);
    if (it != peers_.end()) peer = it->second;
  }
  if (peer == nullptr) return;
  if ((events & EPOLLOUT) != 0) peer->socket().SendUnsent();
  if ((events & ~uint32_t{EPOLLOUT}) != 0) Serve(id, *peer);
}

void ShmLoop::AcceptSome() {
  for (int i = 0; i < kAcceptsARound; ++i) {
    std::shared_ptr<ShmSocket> socket;
    const ShmListener::Got got = listener_.Accept(socket);
    if (got == ShmListener::Got::kNoRoom) return Listen(false);
    if (got == ShmListener::Got::kNothing) return;
    if (got == ShmListener::Got::kStranger) continue;
    std::shared_ptr<ShmLoopPeer> peer = meet_(std::move(socket));
    const absl::Status added = Add(peer);
    if (!added.ok()) peer->OnClosed(added);
  }
}

// Off where accepting failed for want of descriptors: the listener would wake us without end.
void ShmLoop::Listen(bool on) {
  const absl::Status done = Watch(epoll_.get(), on ? EPOLL_CTL_ADD : EPOLL_CTL_DEL, listener_.fd(), kListener);
  listening_ = on && done.ok();  // off: Run tries again
  LOG_IF(ERROR, !done.ok()) << done.message();
  if (on) return;
  LOG_EVERY_T(WARNING, 1)
      << "the kernel lets no further borrower in, mostly for want of descriptors: raise the limit on open files";
}

void ShmLoop::Serve(uint64_t id, ShmLoopPeer& peer) {
  ShmDatagram datagram;
  const ShmSocket::Got got = peer.socket().Receive(datagram, peer.most_message_bytes());
  if (got == ShmSocket::Got::kNothing) return;
  if (got == ShmSocket::Got::kEnd) return Drop(id, peer, absl::UnavailableError("the channel was closed"));
  absl::Status status = absl::InvalidArgumentError("a message is longer, or brings more descriptors, than any may");
  if (got == ShmSocket::Got::kDatagram) status = peer.OnDatagram(std::move(datagram));
  if (status.ok()) return;
  LOG_EVERY_T(WARNING, 0.1) << "a lease's channel is closed: " << status.message();
  Drop(id, peer, status);
}

void ShmLoop::Drop(uint64_t id, ShmLoopPeer& peer, const absl::Status& why) {
  peer.socket().SetWatch(nullptr);
  (void)epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, peer.socket().fd(), nullptr);
  peer.socket().Shutdown();
  peer.OnClosed(why);
  absl::MutexLock lock(&mutex_);
  peers_.erase(id);
}

}  // namespace swiftcache::engine::transport
