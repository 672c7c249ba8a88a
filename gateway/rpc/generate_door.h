// SPDX-License-Identifier: Apache-2.0
// GenerateService: validate, call the relay, translate. The wire is described in generate.proto.
//
//   GenerateDoor door(*relay, {}, clock);
//   ASSIGN_OR_RETURN(auto server, RpcServer::Create({.listen = "127.0.0.1:50051"}, {&door}));
#pragma once

#include "common/base/clock.h"
#include "common/rpc/counted_service.h"
#include "common/sync/side_threads.h"
#include "gateway/relay/relay.h"
#include "gateway/rpc/generate_stream.h"
#include "swiftcache/v1/generate.grpc.pb.h"

namespace swiftcache::gateway::rpc {

/// Thread-safety: safe. Ownership: borrows relay and clock, owns the threads on which long messages are handled; must
/// outlive the server. Errors: as generate.proto says, per call.
class GenerateDoor final : public CountedService<v1::GenerateService> {
 public:
  GenerateDoor(relay::Relay& relay, const GenerateStream::Options& options, const Clock& clock);

  grpc::ServerWriteReactor<v1::GenerateResponse>* Generate(grpc::CallbackServerContext* context,
                                                           const v1::GenerateRequest* request) override;
  grpc::ServerUnaryReactor* ListModels(grpc::CallbackServerContext* context, const v1::ListModelsRequest* request,
                                       v1::ListModelsResponse* response) override;
  grpc::ServerUnaryReactor* Tokenize(grpc::CallbackServerContext* context, const v1::TokenizeRequest* request,
                                     v1::TokenizeResponse* response) override;
  grpc::ServerUnaryReactor* Detokenize(grpc::CallbackServerContext* context, const v1::DetokenizeRequest* request,
                                       v1::DetokenizeResponse* response) override;

 private:
  void Answer(const v1::TokenizeRequest& request, v1::TokenizeResponse& response, grpc::ServerUnaryReactor& reactor);
  void Answer(const v1::DetokenizeRequest& request, v1::DetokenizeResponse& response,
              grpc::ServerUnaryReactor& reactor);
  template <typename Request, typename Response>
  grpc::ServerUnaryReactor* AnswerInTime(grpc::CallbackServerContext& context, const Request& request,
                                         Response& response);

  relay::Relay& relay_;
  const GenerateStream::Options options_;
  const Clock& clock_;
  SideThreads side_threads_{{}};  // last: its work uses the rest
};

}  // namespace swiftcache::gateway::rpc
