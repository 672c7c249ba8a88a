// SPDX-License-Identifier: Apache-2.0
// EngineService over real gRPC with scripted answers.
//
//   FakeEngineService service;
//   auto server = RpcServer::Create({.listen = "127.0.0.1:0"}, {&service});
#pragma once

#include <algorithm>
#include <functional>
#include <string>

#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "swiftcache/v1/engine.grpc.pb.h"

namespace swiftcache::fakes {

/// Thread-safety: set the fields before the server starts.
class FakeEngineService final : public v1::EngineService::Service {
 public:
  using Writer = grpc::ServerWriter<v1::EngineGenerateResponse>;

  std::function<grpc::Status(grpc::ServerContext&, const v1::EngineGenerateRequest&, Writer&)> generate;
  std::string card_bytes, card_hash;
  int64_t announced_bytes = -1;  // -1: the truth
  absl::Notification cancelled;  // by WaitCancelled

  grpc::Status Generate(grpc::ServerContext* context, const v1::EngineGenerateRequest* request,
                        Writer* writer) override {
    return generate(*context, *request, *writer);
  }

  grpc::Status GetModelCard(grpc::ServerContext* context, const v1::GetModelCardRequest* request,
                            grpc::ServerWriter<v1::GetModelCardResponse>* writer) override {
    constexpr size_t kChunk = 1000;
    if (!request->known_hash().empty() && request->known_hash() == card_hash) {
      v1::GetModelCardResponse known;
      known.set_hash(card_hash);
      writer->Write(known);
      return grpc::Status::OK;
    }
    for (size_t at = 0; at < card_bytes.size(); at += kChunk) {
      v1::GetModelCardResponse chunk;
      chunk.set_hash(card_hash);
      chunk.set_total_bytes(announced_bytes < 0 ? static_cast<int64_t>(card_bytes.size()) : announced_bytes);
      chunk.set_data(card_bytes.substr(at, kChunk));
      writer->Write(chunk);
    }
    return grpc::Status::OK;
  }

  /// Sends `tokens` one by one, the last with LENGTH.
  static void SendTokens(Writer& writer, int tokens) {
    for (int i = 0; i < tokens; ++i) {
      v1::EngineGenerateResponse response;
      response.add_token_ids(i);
      if (i + 1 == tokens) response.set_finish_reason(v1::LENGTH);
      writer.Write(response);
    }
  }

  /// Returns once the client has cancelled; streams empty messages, since a write is what fails then.
  grpc::Status WaitCancelled(grpc::ServerContext& context, Writer& writer) {
    while (!context.IsCancelled()) writer.Write(v1::EngineGenerateResponse());
    cancelled.Notify();
    return grpc::Status::CANCELLED;
  }
};

}  // namespace swiftcache::fakes
