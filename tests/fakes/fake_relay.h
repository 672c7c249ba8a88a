// SPDX-License-Identifier: Apache-2.0
// A relay without engines: the test sees each call and says what it answers.
//
//   FakeRelay relay;
//   relay.on_generate = [](std::shared_ptr<FakeCall> call) { call->Say({"Hello", " you"}); };   // or later, by hand:
//   auto call = relay.WaitForCall(0);
//   call->Emit({.index = 0, .text = "Hello"});
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "gateway/relay/relay.h"

namespace swiftcache::fakes {

/// Thread-safety: safe, but one event at a time. Ownership: shared by the relay, the door and the test.
class FakeCall final : public gateway::relay::GenerateCall {
 public:
  FakeCall(gateway::relay::GenerateRequest asked, std::vector<int32_t> prompt_ids,
           std::shared_ptr<gateway::relay::GenerateSink> sink)
      : request(std::move(asked)), prompt_ids_(std::move(prompt_ids)), sink_(std::move(sink)) {}

  const std::string& request_id() const override { return request.request_id; }
  const std::vector<int32_t>& prompt_ids() const override { return prompt_ids_; }
  void Cancel(absl::Status why) override {
    absl::MutexLock lock(&mutex_);
    if (!std::exchange(cancelled_, true)) why_cancelled_ = std::move(why);
  }

  void Emit(gateway::relay::GenerateEvent event) {
    if (auto sink = Sink()) sink->OnEvent(std::move(event));
  }
  void End(absl::Status status = absl::OkStatus()) {
    std::shared_ptr<gateway::relay::GenerateSink> sink;
    {
      absl::MutexLock lock(&mutex_);
      sink = std::exchange(sink_, nullptr);
    }
    if (sink) sink->OnDone(std::move(status));
  }
  /// Answers every continuation with these tokens, then ends well.
  void Say(const std::vector<std::string>& tokens,
           gateway::fleet::FinishReason finish = gateway::fleet::FinishReason::kStop) {
    for (int32_t index = 0; index < request.sampling.n.value_or(1); ++index) {
      for (size_t i = 0; i < tokens.size(); ++i) Emit(Token(index, tokens, i, finish));
    }
    End();
  }
  /// True as soon as it was cancelled.
  bool WaitCancelled() {
    absl::MutexLock lock(&mutex_);
    return mutex_.AwaitWithTimeout(absl::Condition(&cancelled_), absl::Seconds(20));
  }
  absl::Status why_cancelled() {
    absl::MutexLock lock(&mutex_);
    return why_cancelled_;
  }
  bool cancelled() {
    absl::MutexLock lock(&mutex_);
    return cancelled_;
  }

  const gateway::relay::GenerateRequest request;
  gateway::fleet::Usage usage;  // of the last event; counts of tokens are filled in

 private:
  std::shared_ptr<gateway::relay::GenerateSink> Sink() {
    absl::MutexLock lock(&mutex_);
    return sink_;
  }
  gateway::relay::GenerateEvent Token(int32_t index, const std::vector<std::string>& tokens, size_t i,
                                      gateway::fleet::FinishReason finish) {
    gateway::relay::GenerateEvent event;
    event.index = index;
    event.text = tokens[i];
    event.token_ids = {static_cast<int32_t>(100 + i)};
    if (request.sampling.logprobs) {
      event.logprobs = {{.token_id = static_cast<int32_t>(100 + i), .logprob = -0.5f, .token = tokens[i], .top = {}}};
      for (int32_t k = 0; k < *request.sampling.logprobs; ++k) {
        event.logprobs[0].top.push_back(
            {.token_id = k, .logprob = -1.0f - k, .token = absl::StrCat("t", k), .top = {}});
      }
    }
    if (i + 1 < tokens.size()) return event;
    event.finish = finish;
    event.usage = usage;
    event.usage->prompt_tokens = static_cast<int64_t>(prompt_ids_.size());
    event.usage->completion_tokens = static_cast<int64_t>(tokens.size());
    return event;
  }

  const std::vector<int32_t> prompt_ids_;
  absl::Mutex mutex_;
  std::shared_ptr<gateway::relay::GenerateSink> sink_ ABSL_GUARDED_BY(mutex_);
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status why_cancelled_ ABSL_GUARDED_BY(mutex_);
};

/// A prompt has one token a byte; a chat one a byte of content. Thread-safety: safe.
class FakeRelay final : public gateway::relay::Relay {
 public:
  absl::StatusOr<std::shared_ptr<gateway::relay::GenerateCall>> Generate(
      gateway::relay::GenerateRequest request, std::shared_ptr<gateway::relay::GenerateSink> sink) override {
    if (check) {
      if (absl::Status status = check(request); !status.ok()) return status;
    }
    auto ids = PromptIds(request.input);
    auto call = std::make_shared<FakeCall>(std::move(request), std::move(ids), std::move(sink));
    {
      absl::MutexLock lock(&mutex_);
      calls_.push_back(call);
    }
    if (on_generate) on_generate(call);
    return std::shared_ptr<gateway::relay::GenerateCall>(call);
  }
  absl::Status CheckSizes(const std::string&, const gateway::relay::RequestSizes& sizes) override {
    return check_sizes ? check_sizes(sizes) : absl::OkStatus();
  }
  void Refused(gateway::relay::GenerateRequest request, const absl::Status& why) override {
    absl::MutexLock lock(&mutex_);
    refused_.emplace_back(std::move(request), why);
  }
  absl::StatusOr<std::vector<int32_t>> Tokenize(const std::string&,
                                                const std::variant<std::string, gateway::relay::Chat>&, bool) override {
    return absl::UnimplementedError("no door asks for it");
  }
  absl::StatusOr<std::vector<gateway::relay::ModelInfo>> ListModels() override { return models; }
  absl::StatusOr<std::string> Detokenize(const std::string&, std::span<const int32_t> ids) override {
    ++detokenized;
    if (detokenize) return detokenize();
    std::string text;
    for (const int32_t id : ids) text += static_cast<char>('a' + id % 26);
    return text;
  }

  /// nullptr when it does not come.
  std::shared_ptr<FakeCall> WaitForCall(size_t number) {
    absl::MutexLock lock(&mutex_);
    auto there = [this, number]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return calls_.size() > number; };
    if (!mutex_.AwaitWithTimeout(absl::Condition(&there), absl::Seconds(20))) return nullptr;
    return calls_[number];
  }
  size_t calls() {
    absl::MutexLock lock(&mutex_);
    return calls_.size();
  }

  /// What the door refused itself.
  std::vector<std::pair<gateway::relay::GenerateRequest, absl::Status>> refused() {
    absl::MutexLock lock(&mutex_);
    return refused_;
  }

  std::atomic<int> detokenized = 0;  // how often ids were turned into text
  // Set before the first request.
  std::function<absl::Status(const gateway::relay::RequestSizes&)> check_sizes;
  std::function<absl::Status(const gateway::relay::GenerateRequest&)> check;
  std::function<void(std::shared_ptr<FakeCall>)> on_generate;
  std::function<std::string()> detokenize;  // else a letter for each id
  absl::StatusOr<std::vector<gateway::relay::ModelInfo>> models =
      std::vector<gateway::relay::ModelInfo>{{.name = "m", .max_model_len_tokens = 2048, .engines = 1}};

 private:
  static std::vector<int32_t> PromptIds(const gateway::relay::Input& input) {
    if (const auto* ids = std::get_if<std::vector<int32_t>>(&input)) return *ids;
    if (const auto* text = std::get_if<std::string>(&input)) return {text->begin(), text->end()};
    std::vector<int32_t> ids;
    for (const auto& message : std::get<gateway::relay::Chat>(input).messages) {
      ids.insert(ids.end(), message.content.begin(), message.content.end());
    }
    return ids;
  }

  absl::Mutex mutex_;
  std::vector<std::shared_ptr<FakeCall>> calls_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::pair<gateway::relay::GenerateRequest, absl::Status>> refused_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace swiftcache::fakes
