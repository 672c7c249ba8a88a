// SPDX-License-Identifier: Apache-2.0
// The thread that hears every channel of an engine: takes one message at a time from each, so that a peer that floods
// its own channel delays the others by one message a round. It also sends what a channel had no room for.
//
//   ASSIGN_OR_RETURN(auto loop, ShmLoop::Create(listener, [&](auto socket) { return donor.Meet(std::move(socket)); }));
//   RETURN_IF_ERROR(loop->Add(channel));
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "engine/transport/shm_listener.h"
#include "engine/transport/shm_message.h"
#include "engine/transport/shm_socket.h"

namespace swiftcache::engine::transport {

/// A channel's end as the loop sees it, whatever is spoken there. The calls come from the loop's thread only.
class ShmLoopPeer {
 public:
  virtual ~ShmLoopPeer() = default;
  virtual ShmSocket& socket() = 0;
  /// A longer message ends the channel.
  virtual int64_t most_message_bytes() const = 0;
  /// Not OK: the peer said what it must not; the channel is closed, one line is logged.
  virtual absl::Status OnDatagram(ShmDatagram datagram) = 0;
  /// The last call: the channel is at its end. `why`: UNAVAILABLE where the peer closed it, or we did; else what it
  /// said that it must not.
  virtual void OnClosed(const absl::Status& why) = 0;
};

/// One that speaks as shm_message.h says.
class ShmPeer : public ShmLoopPeer {
 public:
  int64_t most_message_bytes() const final { return kMaxShmMessageBytes; }
  absl::Status OnDatagram(ShmDatagram datagram) final;
  virtual absl::Status OnMessage(ShmMessage message, std::vector<memory::UniqueFd> fds) = 0;
};

/// Thread-safety: safe. Ownership: shares peers until their channels close; borrows the listener.
/// Errors: Create: RESOURCE_EXHAUSTED (descriptors). Whatever a peer does closes its channel and no other.
class ShmLoop {
 public:
  using Meet = std::function<std::shared_ptr<ShmLoopPeer>(std::shared_ptr<ShmSocket>)>;
  /// `meet` makes a peer of a connection that came in.
  static absl::StatusOr<std::unique_ptr<ShmLoop>> Create(ShmListener& listener, Meet meet);
  ~ShmLoop() { Stop(); }

  /// Hears this channel too, unless that is RESOURCE_EXHAUSTED. Shared: the loop and whoever sends to it.
  absl::Status Add(std::shared_ptr<ShmLoopPeer> peer) ABSL_LOCKS_EXCLUDED(mutex_);
  /// Hears nothing more and joins; peers are dropped without OnClosed.
  void Stop();

 private:
  ShmLoop(ShmListener& listener, Meet meet, memory::UniqueFd epoll, memory::UniqueFd wake);
  void Run();
  void Handle(uint64_t id, uint32_t events);
  void AcceptSome();
  void Listen(bool on);
  void Serve(uint64_t id, ShmLoopPeer& peer);
  void Drop(uint64_t id, ShmLoopPeer& peer, const absl::Status& why) ABSL_LOCKS_EXCLUDED(mutex_);

  ShmListener& listener_;
  const Meet meet_;
  const memory::UniqueFd epoll_, wake_;
  std::atomic<bool> stopping_ = false;
  bool listening_ = true;  // the loop's thread only
  absl::Mutex mutex_;
  absl::flat_hash_map<uint64_t, std::shared_ptr<ShmLoopPeer>> peers_ ABSL_GUARDED_BY(mutex_);
  uint64_t next_id_ ABSL_GUARDED_BY(mutex_) = 2;  // 0: wake, 1: listener
  std::thread thread_;                            // last: it uses everything above
};

}  // namespace swiftcache::engine::transport
