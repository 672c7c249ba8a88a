// SPDX-License-Identifier: Apache-2.0
// Listens, and hands over who connects. gRPC 1.51's own listener never accepts again once the process has had no
// descriptor left for a connection (github.com/grpc/grpc/pull/33656).
//
//   ASSIGN_OR_RETURN(auto listener, Listener::Create({.host = "127.0.0.1", .port = 0}));
//   listener->Start([&](int listening, int connection) { ... });
#pragma once

#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/rpc/address.h"

namespace swiftcache {

/// A client that takes no bytes for so long, or answers no ping, is gone.
inline constexpr absl::Duration kUntakenTimeout = absl::Seconds(10);

/// Where accepting fails it is tried again every 100 ms. The last descriptors of the process (64, or an eighth of those
/// that it may have, if that is less) are for others: who would get one of them is turned away.
/// Thread-safety: none, but for port. Ownership: owns its sockets and its thread.
/// Errors: Create: INVALID_ARGUMENT (address, or a port that this user may not have), UNAVAILABLE (in use, or an
/// address that this machine does not have now); they name the address and the flag.
class Listener {
 public:
  /// Gets the descriptor that listens and the one of the connection, which it owns from then on. Must not block.
  using Take = std::function<void(int listening, int connection)>;

  /// Listens at once: at each address of a name that this machine has, at 0.0.0.0 and [::] for IPv4 and IPv6. Port 0
  /// picks one for all.
  static absl::StatusOr<std::unique_ptr<Listener>> Create(const HostPort& where);
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;
  ~Listener() { Stop(); }

  int port() const { return port_; }
  /// `take` is called by a thread of its own, until Stop. Called once.
  void Start(Take take);
  /// Listens no more; who has connected and was not accepted yet is disconnected.
  void Stop();

 private:
  Listener() = default;
  void Run();
  bool Accept(int listening);

  std::vector<int> listening_;
  int stop_ = -1;  // an eventfd
  int port_ = 0;
  Take take_;
  std::thread thread_;
};

}  // namespace swiftcache
