// SPDX-License-Identifier: Apache-2.0
// A borrower that says anything.
//
//   RawPeer peer(donor.transport->channel());
//   peer.SayHello(staging.fd);
//   std::optional<ShmDatagram> grant = peer.Hear();
#pragma once

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "engine/transport/shm_message.h"
#include "engine/transport/shm_socket.h"
#include "tests/engine/transport/staging_memory.h"
#include "tests/engine/transport/test_lease.h"
#include "tests/engine/transport/transport_harness.h"

namespace swiftcache::engine::transport {

/// Ownership: owns its end of the channel.
class RawPeer {
 public:
  explicit RawPeer(const std::string& channel, kv::LeaseId lease = kLease)
      : lease_(lease), socket_(ShmSocket::Connect(channel).value()) {}

  bool SayBytes(std::span<const std::byte> bytes, std::span<const int> fds = {}) { return socket_->Send(bytes, fds); }
  template <typename Body>
  bool Say(const Body& body, std::span<const int> fds = {}) {
    return socket_->Send(EncodeShmMessage(body), fds);
  }
  void SayHello(const memory::UniqueFd& staging, int64_t bytes = kStagingBytes, const char* capability = kCapability) {
    ShmHello hello = {.lease = lease_.value(), .staging_bytes = bytes};
    SetWireText(hello.capability, capability);
    SetWireText(hello.instance, "borrower-instance");
    const int fds[] = {staging.get()};
    Say(hello, fds);
  }
  /// What `next` encodes, again and again, as fast as the other end hears it. False: that end did not cut the channel.
  template <typename Next>
  bool FloodUntilCut(Next next) {
    const absl::Time deadline = absl::Now() + RecordingTransportEvents::kPatience;
    for (std::vector<std::byte> message = next(); absl::Now() < deadline;) {
      if (send(socket_->fd(), message.data(), message.size(), MSG_NOSIGNAL | MSG_DONTWAIT) >= 0) {
        message = next();
        continue;
      }
      if (errno != EAGAIN && errno != EINTR) return true;
      pollfd room{.fd = socket_->fd(), .events = POLLOUT, .revents = 0};
      (void)poll(&room, 1, 100);
    }
    return false;
  }
  /// The next message, or nothing at the channel's end.
  std::optional<ShmDatagram> Hear() {
    const absl::Time deadline = absl::Now() + RecordingTransportEvents::kPatience;
    ShmDatagram datagram;
    while (absl::Now() < deadline) {
      const ShmSocket::Got got = socket_->Receive(datagram);
      if (got == ShmSocket::Got::kDatagram) return datagram;
      if (got != ShmSocket::Got::kNothing) return std::nullopt;
      absl::SleepFor(absl::Microseconds(200));
    }
    ADD_FAILURE() << "neither a message nor the channel's end came";
    return std::nullopt;
  }
  /// Whether the end comes, after answers or at once.
  bool IsCut() {
    while (Hear().has_value()) {
    }
    return !::testing::Test::HasFailure();
  }

 private:
  const kv::LeaseId lease_;
  std::shared_ptr<ShmSocket> socket_;
};

}  // namespace swiftcache::engine::transport
