// SPDX-License-Identifier: Apache-2.0
// EngineService over real gRPC with scripted answers.
//
//   FakeEngineService service;
//   service.generate = [](FakeGeneration& generation) { generation.SendTokens(3); return absl::OkStatus(); };
//   auto server = RpcServer::Create({.listen = "127.0.0.1:0"}, {&service});
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "common/rpc/proto_duration.h"
#include "common/rpc/status.h"
#include "swiftcache/v1/engine.grpc.pb.h"

namespace swiftcache::fakes {

/// One generation of a GenerateMany call, as its script sees it on a thread of its own.
class FakeGeneration {
 public:
  using Stream = grpc::ServerReaderWriter<v1::GenerateManyResponse, v1::GenerateManyRequest>;

  FakeGeneration(v1::GenerateManyRequest command, Stream& stream, absl::Mutex& write_mutex)
      : command_(std::move(command)), stream_(stream), write_mutex_(write_mutex) {}

  const v1::GenerateManyRequest::Begin& begin() const { return command_.begin(); }
  const v1::EngineGenerateRequest& request() const { return command_.begin().request(); }
  int64_t id() const { return command_.generation_id(); }

  /// 0, 1, ... in a message each, the last with LENGTH.
  void SendTokens(int tokens) {
    for (int i = 0; i < tokens; ++i) {
      v1::GenerateManyResponse response;
      v1::EngineGenerateResponse& out = *AddOutput(response, id()).mutable_tokens();
      out.add_token_ids(i);
      if (i + 1 == tokens) out.set_finish_reason(v1::LENGTH);
      Send(response);
    }
  }
  static v1::GenerateManyResponse::Output& AddOutput(v1::GenerateManyResponse& response, int64_t id) {
    v1::GenerateManyResponse::Output& output = *response.add_outputs();
    output.set_generation_id(id);
    return output;
  }
  void Send(const v1::GenerateManyResponse& response) {
    absl::MutexLock lock(&write_mutex_);
    stream_.Write(response);
  }
  void End(const absl::Status& status) {
    v1::GenerateManyResponse response;
    v1::GenerateManyResponse::End& end = *AddOutput(response, id()).mutable_end();
    end.set_code(static_cast<int>(status.code()));
    end.set_message(std::string(status.message()));
    if (const auto delay = RetryDelayOf(status)) *end.mutable_retry_delay() = DurationToProto(*delay);
    Send(response);
  }

  void Cancel() {
    absl::MutexLock lock(&mutex_);
    cancelled_ = true;
  }
  void CancelIndex(int32_t index) {
    absl::MutexLock lock(&mutex_);
    cancelled_index_ = index;
  }
  /// The continuation that the client has cancelled; none: not within 30 s.
  std::optional<int32_t> WaitCancelledIndex() {
    absl::MutexLock lock(&mutex_);
    mutex_.AwaitWithTimeout(absl::Condition(
                                +[](std::optional<int32_t>* index) { return index->has_value(); }, &cancelled_index_),
                            absl::Seconds(30));
    return cancelled_index_;
  }
  /// Returns once the client has cancelled it, or the stream has ended.
  absl::Status WaitCancelled() {
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(&cancelled_));
    return absl::CancelledError("cancelled");
  }

 private:
  const v1::GenerateManyRequest command_;
  Stream& stream_;
  absl::Mutex& write_mutex_;
  absl::Mutex mutex_;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<int32_t> cancelled_index_ ABSL_GUARDED_BY(mutex_);
};

/// Thread-safety: set the fields before the server starts.
class FakeEngineService final : public v1::EngineService::Service {
 public:
  std::function<absl::Status(FakeGeneration&)> generate;
  bool ends_by_script = false;  // false: what `generate` returns is the end of its generation
  std::string card_bytes, card_hash, instance_id;
  int64_t announced_bytes = -1;  // -1: the truth

  int streams_begun() const { return streams_begun_; }
  /// Ends the GenerateMany calls under way.
  void CancelStreams() {
    absl::MutexLock lock(&mutex_);
    for (grpc::ServerContext* context : contexts_) context->TryCancel();
  }
  /// Until no GenerateMany call is under way; false: not within 30 s.
  bool WaitForNoStream() {
    absl::MutexLock lock(&mutex_);
    return mutex_.AwaitWithTimeout(absl::Condition(
                                       +[](std::vector<grpc::ServerContext*>* c) { return c->empty(); }, &contexts_),
                                   absl::Seconds(30));
  }

  grpc::Status GenerateMany(grpc::ServerContext* context, FakeGeneration::Stream* stream) override {
    ++streams_begun_;
    {
      absl::MutexLock lock(&mutex_);
      contexts_.push_back(context);
    }
    absl::Mutex write_mutex;
    std::map<int64_t, std::shared_ptr<FakeGeneration>> generations;
    std::vector<std::thread> threads;
    v1::GenerateManyRequest command;
    while (stream->Read(&command)) {
      if (command.has_cancel()) {
        const auto cancelled = generations.find(command.generation_id());
        if (cancelled == generations.end()) continue;
        if (command.cancel().has_index()) {
          cancelled->second->CancelIndex(command.cancel().index());
        } else {
          cancelled->second->Cancel();
        }
        continue;
      }
      auto generation = std::make_shared<FakeGeneration>(command, *stream, write_mutex);
      generations[command.generation_id()] = generation;
      threads.emplace_back([this, generation] {
        const absl::Status end = generate(*generation);
        if (!ends_by_script) generation->End(end);
      });
    }
    for (const auto& [id, generation] : generations) generation->Cancel();
    for (std::thread& thread : threads) thread.join();
    absl::MutexLock lock(&mutex_);
    std::erase(contexts_, context);
    return grpc::Status::OK;
  }

  grpc::Status GetModelCard(grpc::ServerContext* context, const v1::GetModelCardRequest* request,
                            grpc::ServerWriter<v1::GetModelCardResponse>* writer) override {
    constexpr size_t kChunk = 1000;
    if (!request->known_hash().empty() && request->known_hash() == card_hash) {
      v1::GetModelCardResponse known;
      known.set_hash(card_hash);
      known.set_instance_id(instance_id);
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

 private:
  std::atomic<int> streams_begun_ = 0;
  absl::Mutex mutex_;
  std::vector<grpc::ServerContext*> contexts_ ABSL_GUARDED_BY(mutex_);  // of the GenerateMany calls under way
};

}  // namespace swiftcache::fakes
