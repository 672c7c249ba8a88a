// SPDX-License-Identifier: Apache-2.0
// gRPC's server reflection over the descriptors that are linked in. gRPC's own parses a request of any number of fields
// before it looks at it, and looks up names of any length, for which the pool takes time that grows with their square.
//
//   ReflectionDoor reflection;
//   builder.RegisterService(&reflection);
//   reflection.set_services({"swiftcache.v1.GenerateService"});  // before the server starts
#pragma once

#include <atomic>
#include <string>
#include <utility>
#include <vector>

#include "common/rpc/counted_service.h"
#include "grpc/reflection/v1alpha/reflection.grpc.pb.h"

namespace swiftcache {

/// Answers for all services of one server. Thread-safety: set_services before the server starts; else safe. Ownership: it
/// must outlive the server. Errors: of a request in its answer. The call ends with INVALID_ARGUMENT: a request that
/// cannot be parsed, has too many fields, or over kMaxRequestBytes; RESOURCE_EXHAUSTED: over kMaxCalls at a time.
class ReflectionDoor final : public CountedService<grpc::reflection::v1alpha::ServerReflection> {
 public:
  using Request = grpc::reflection::v1alpha::ServerReflectionRequest;
  using Response = grpc::reflection::v1alpha::ServerReflectionResponse;
  static constexpr size_t kMaxRequestBytes = 1024;
  static constexpr int kMaxCalls = 64;  // an answer that nobody reads takes some 100 KB

  ReflectionDoor();
  /// `services`: full names.
  void set_services(std::vector<std::string> services) { services_ = std::move(services); }
  const std::vector<std::string>& services() const { return services_; }

 private:
  grpc::ServerBidiReactor<Counted<Request>, Response>* Open(grpc::CallbackServerContext*);

  std::vector<std::string> services_;
  std::atomic<int> calls_ = 0;
};

}  // namespace swiftcache
