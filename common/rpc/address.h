// SPDX-License-Identifier: Apache-2.0
// host:port, taken apart and put together; IPv6 hosts stand in brackets.
//
//   ASSIGN_OR_RETURN(HostPort where, HostPort::Parse("[::1]:50051"));
//   where.port = 50061;
//   auto channel = CreateRpcChannel(where.ToString(), {});
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace swiftcache {

/// Thread-safety: a value.
struct HostPort {
  std::string host;  // a name or an address, without brackets
  int port = 0;

  /// INVALID_ARGUMENT names the text and the form wanted; port 0..65535.
  static absl::StatusOr<HostPort> Parse(std::string_view text);
  std::string ToString() const;
};

/// "127.0.0.1:4711" and "[::1]:4711" of gRPC's peers "ipv4:127.0.0.1:4711" and "ipv6:%5B::1%5D:4711"; others unchanged.
std::string ClientAddress(const std::string& peer);

}  // namespace swiftcache
