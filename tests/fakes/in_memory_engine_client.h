// SPDX-License-Identifier: Apache-2.0
// EngineClient without a wire: the gateway's rooms talk to an exec::Engine in the same process, so that a sanitizer
// sees every thread of both.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "engine/exec/engine.h"
#include "gateway/fleet/engine_client.h"

namespace swiftcache::fakes {

/// Thread-safety: safe. Ownership: borrows the engine, which outlives it. Errors: those of exec::Engine.
class InMemoryEngineClient final : public gateway::fleet::EngineClient {
 public:
  InMemoryEngineClient(engine::exec::Engine& engine, gateway::fleet::ModelCard card)
      : engine_(engine), card_(std::move(card)) {}

  std::unique_ptr<gateway::fleet::EngineCall> Generate(
      const gateway::fleet::EngineRequest& request, std::shared_ptr<gateway::fleet::EngineObserver> observer) override {
    absl::Status status = engine_.Submit(ToEngine(request), std::make_unique<Sink>(observer));
    if (!status.ok()) observer->OnDone(status);
    return std::make_unique<Call>(engine_, request.request_id);
  }
  absl::StatusOr<gateway::fleet::ModelCard> FetchModelCard(absl::Duration) override { return card_; }
  absl::Status Ping(absl::Duration) override { return absl::OkStatus(); }

 private:
  class Sink final : public engine::exec::ResponseSink {
   public:
    explicit Sink(std::shared_ptr<gateway::fleet::EngineObserver> observer) : observer_(std::move(observer)) {}
    void OnTokens(engine::exec::TokenEvent event) override {
      gateway::fleet::EngineEvent out{.index = event.index, .token_ids = std::move(event.token_ids)};
      for (auto& l : event.logprobs) out.logprobs.push_back({l.token_id, l.logprob, std::move(l.top)});
      if (event.finish) out.finish = static_cast<gateway::fleet::FinishReason>(*event.finish);
      if (event.usage) {
        out.usage = gateway::fleet::Usage{.prompt_tokens = event.usage->prompt_tokens,
                                          .completion_tokens = event.usage->completion_tokens,
                                          .cached_local_tokens = event.usage->cached_local_tokens};
      }
      observer_->OnEvent(std::move(out));
    }
    void OnDone(absl::Status status) override { std::exchange(observer_, nullptr)->OnDone(std::move(status)); }

   private:
    std::shared_ptr<gateway::fleet::EngineObserver> observer_;
  };

  class Call final : public gateway::fleet::EngineCall {
   public:
    Call(engine::exec::Engine& engine, std::string id) : engine_(engine), id_(std::move(id)) {}
    void Cancel() override { engine_.Cancel(id_, {}, {}); }
    void CancelIndex(int32_t index) override { engine_.Cancel(id_, {}, index); }

   private:
    engine::exec::Engine& engine_;
    const std::string id_;
  };

  static engine::exec::Request ToEngine(const gateway::fleet::EngineRequest& from) {
    const gateway::fleet::Sampling& s = from.sampling;
    engine::exec::Request to;
    to.request_id = from.request_id;
    to.prompt = from.token_ids;
    to.sampling.temperature = s.temperature.value_or(1.0f);
    to.sampling.top_p = s.top_p.value_or(1.0f);
    to.sampling.top_k = s.top_k.value_or(0);
    to.sampling.seed = s.seed.value_or(0);
    to.sampling.logprobs = s.logprobs;
    if (s.max_tokens) to.max_tokens = *s.max_tokens;
    to.stop_token_ids = s.stop_token_ids;
    to.ignore_eos = s.ignore_eos;
    to.n = s.n.value_or(1);
    to.cache_salt = from.cache_salt;
    to.priority = from.priority;
    return to;
  }

  engine::exec::Engine& engine_;
  const gateway::fleet::ModelCard card_;
};

}  // namespace swiftcache::fakes
