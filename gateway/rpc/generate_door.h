// SPDX-License-Identifier: Apache-2.0
// GenerateService: validate, call the relay, translate. The wire is described in generate.proto.
//
//   GenerateDoor door(*relay, {}, clock);
//   ASSIGN_OR_RETURN(auto server, RpcServer::Create({.listen = "127.0.0.1:50051"}, {&door}));
#pragma once

#include <google/protobuf/message.h>

#include <functional>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/byte_budget.h"
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
  struct Options {
    GenerateStream::Options stream = {};
    SideThreads::Options side_threads = {};  // for long messages; RESOURCE_EXHAUSTED where too much waits for them
    // What Tokenize and Detokenize hold, requests included, until their answers are written; RESOURCE_EXHAUSTED beyond.
    int64_t max_held_answer_bytes = int64_t{512} << 20;
    absl::Duration answer_timeout = absl::Seconds(30);  // for clients to read such an answer, as HeldAnswer says
  };
  GenerateDoor(relay::Relay& relay, const Options& options, const Clock& clock);

  grpc::ServerWriteReactor<v1::GenerateResponse>* Generate(grpc::CallbackServerContext* context,
                                                           const v1::GenerateRequest* request) override;
  grpc::ServerUnaryReactor* ListModels(grpc::CallbackServerContext* context, const v1::ListModelsRequest* request,
                                       v1::ListModelsResponse* response) override;
  grpc::ServerUnaryReactor* Tokenize(grpc::CallbackServerContext* context, const v1::TokenizeRequest* request,
                                     v1::TokenizeResponse* response) override;
  grpc::ServerUnaryReactor* Detokenize(grpc::CallbackServerContext* context, const v1::DetokenizeRequest* request,
                                       v1::DetokenizeResponse* response) override;

 private:
  void Refuse(const grpc::CallbackServerContext& context, const v1::GenerateRequest& request, const absl::Status& why);
  absl::Status Answer(const v1::TokenizeRequest& request, v1::TokenizeResponse& response);
  absl::Status Answer(const v1::DetokenizeRequest& request, v1::DetokenizeResponse& response);
  absl::Status RunInTime(const google::protobuf::Message& request, int copies, std::function<void()> work);
  template <typename Request, typename Response>
  grpc::ServerUnaryReactor* AnswerInTime(grpc::CallbackServerContext& context, const Request& request,
                                         Response& response);

  relay::Relay& relay_;
  const Options options_;
  const Clock& clock_;
  ByteBudget answers_budget_;
  SideThreads side_threads_;  // last: its work uses the rest
};

}  // namespace swiftcache::gateway::rpc
