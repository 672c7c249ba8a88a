// SPDX-License-Identifier: Apache-2.0
// GenerateService over real gRPC: serves the names of models, and answers each request with one status.
//
//   FakeGatewayService service;
//   service.models = {"chat"};
//   auto server = RpcServer::Create({.listen = "127.0.0.1:0"}, {&service});
#pragma once

#include <string>
#include <vector>

#include "swiftcache/v1/generate.grpc.pb.h"

namespace swiftcache::fakes {

/// Thread-safety: set the fields before the server starts.
class FakeGatewayService final : public v1::GenerateService::Service {
 public:
  std::vector<std::string> models;
  grpc::Status answer;  // of Generate

  grpc::Status ListModels(grpc::ServerContext*, const v1::ListModelsRequest*,
                          v1::ListModelsResponse* response) override {
    for (const std::string& name : models) response->add_models()->set_name(name);
    return grpc::Status::OK;
  }

  grpc::Status Generate(grpc::ServerContext*, const v1::GenerateRequest*,
                        grpc::ServerWriter<v1::GenerateResponse>*) override {
    return answer;
  }
};

}  // namespace swiftcache::fakes
