// SPDX-License-Identifier: Apache-2.0
// gRPC's server reflection over the descriptors that are linked in. gRPC's own parses a request of any number of fields
// before it looks at it, which takes gigabytes for what 64 MiB can hold.
//
//   ReflectionDoor reflection;
//   builder.RegisterService(&reflection);
//   reflection.set_services({"swiftcache.v1.GenerateService"});  // before the server starts
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "common/rpc/counted_service.h"
#include "grpc/reflection/v1alpha/reflection.grpc.pb.h"

namespace swiftcache {

/// Thread-safety: set_services before the server starts; else safe.
class ReflectionDoor final : public CountedService<grpc::reflection::v1alpha::ServerReflection> {
 public:
  using Request = grpc::reflection::v1alpha::ServerReflectionRequest;
  using Response = grpc::reflection::v1alpha::ServerReflectionResponse;

  ReflectionDoor();
  /// Full names.
  void set_services(std::vector<std::string> services) { services_ = std::move(services); }
  const std::vector<std::string>& services() const { return services_; }

 private:
  grpc::ServerBidiReactor<Counted<Request>, Response>* Open(grpc::CallbackServerContext*);

  std::vector<std::string> services_;
};

}  // namespace swiftcache
