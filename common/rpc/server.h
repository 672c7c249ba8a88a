// SPDX-License-Identifier: Apache-2.0
// The gRPC server of every process: its services plus grpc.health.v1 and reflection, on a given or a free port, with a
// shutdown that lets calls finish.
//
//   ASSIGN_OR_RETURN(auto server, RpcServer::Create({.listen = "127.0.0.1:50051"}, {&generate_service}));
//   server->SetServing(true);
#pragma once

#include <grpcpp/impl/service_type.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace swiftcache {

/// Compressed requests are refused: UNIMPLEMENTED.
/// Thread-safety: safe. Ownership: owns the grpc::Server, borrows the services (they must outlive it).
/// Errors: Create: INVALID_ARGUMENT (address), UNAVAILABLE (address in use; names it and the flag).
class RpcServer {
 public:
  struct Options {
    std::string listen;                 // host:port, port 0 picks one
    int max_request_bytes = 64 << 20;   // of each message
    int max_response_bytes = 64 << 20;  // likewise
    // Of the server's transports together: beyond it gRPC reads no further, then ends streams with RESOURCE_EXHAUSTED.
    int64_t max_memory_bytes = 512 << 20;
    int max_streams_per_connection = 4096;  // a client's further calls wait at the client
  };
  static absl::StatusOr<std::unique_ptr<RpcServer>> Create(const Options& options,
                                                           const std::vector<grpc::Service*>& services);
  virtual ~RpcServer() = default;
  virtual std::string address() const = 0;  // host:port in use
  /// grpc.health.v1 for "" and for every service; NOT_SERVING from the start.
  virtual void SetServing(bool serving) = 0;
  /// NOT_SERVING, then lets calls end until `deadline` (of RealClock), then cancels them. A new call is refused:
  /// UNAVAILABLE, or, on a connection that gRPC took on before it stopped listening, CANCELLED.
  virtual void Stop(absl::Time deadline) = 0;
};

/// `value` of the client's metadata `key`, or "" (for traceparent).
template <typename Context>
std::string ClientMetadata(const Context& context, const std::string& key) {
  auto it = context.client_metadata().find(key);
  return it == context.client_metadata().end() ? std::string() : std::string(it->second.data(), it->second.size());
}

}  // namespace swiftcache
