// SPDX-License-Identifier: Apache-2.0
// Passes a request from a door (gRPC or OpenAI's HTTP) to an engine, and the engine's tokens back as text. If an engine
// fails before the first token was sent, the request is retried on another engine of the model; after that the client
// gets one clear error.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gateway/fleet/engine_client.h"
#include "gateway/text/chat_template.h"

namespace swiftcache::gateway::relay {

struct Chat {
  std::vector<text::ChatMessage> messages;
  bool add_generation_prompt = true;
  bool plain_content = false;
  text::TemplateVariables template_variables = {};
};

using Input = std::variant<std::string, std::vector<int32_t>, Chat>;

struct GenerateRequest {
  std::string request_id;  // the client's, for responses and logs, need not be unique; empty: the relay makes one
  std::string traceparent;
  std::string door, client;  // for the log: "grpc" or "http", and the other end of the connection as host:port
  std::string model;
  Input input;
  bool plain_prompt = false;  // of a text: what looks like a special token stays text
  bool add_special = true;    // of a text: begin and end tokens, where the model wants them
  fleet::Sampling sampling;
  std::string cache_salt;
  int32_t priority = 0;
  absl::Time deadline = absl::InfiniteFuture();
  absl::Time arrived = absl::InfiniteFuture();  // at a door where it waits for a thread; else when the relay gets it
};

/// How much a request has of what may be much.
struct RequestSizes {
  int64_t prompt_bytes = 0;  // of a prompt of text
  int64_t token_ids = 0;     // of a prompt of ids
  int64_t messages = 0, template_variables = 0;
  int64_t stop_strings = 0, stop_token_ids = 0;
};

struct TokenLogprob {
  int32_t token_id = 0;
  float logprob = 0;
  std::string token;  // bytes
  std::vector<TokenLogprob> top;
};

/// One message of the stream; meaning as proto GenerateResponse.
struct GenerateEvent {
  int32_t index = 0;
  std::string text;
  std::vector<int32_t> token_ids;
  std::vector<TokenLogprob> logprobs;
  std::optional<fleet::FinishReason> finish;  // kStop or kLength: a request that a shutdown ends gets UNAVAILABLE
  std::optional<fleet::Usage> usage;
};

/// A door's end of a request. Called from any thread, one call at a time; must not block.
class GenerateSink {
 public:
  virtual ~GenerateSink() = default;
  virtual void OnEvent(GenerateEvent event) = 0;
  virtual void OnDone(absl::Status status) = 0;  // last call, exactly once
};

/// What a request ends with whose client ended it, or is gone.
inline absl::Status ClientGone() { return absl::CancelledError("cancelled by the client"); }

/// A request under way; Cancel at any time, from any thread.
class GenerateCall {
 public:
  virtual ~GenerateCall() = default;
  virtual const std::string& request_id() const = 0;
  virtual const std::vector<int32_t>& prompt_ids() const = 0;
  /// Ends it with `why`, which is counted and logged; the first stays, and a call that has ended is as it is.
  virtual void Cancel(absl::Status why) = 0;
};

struct ModelInfo {
  std::string name;
  int64_t max_model_len_tokens = 0;
  int32_t engines = 0;
};

/// Thread-safety: safe. Ownership: shares sinks until OnDone. Errors: Generate returns what is wrong with the request
/// before anything is sent (the sink is then never called); later errors reach OnDone.
class Relay {
 public:
  virtual ~Relay() = default;
  virtual absl::StatusOr<std::shared_ptr<GenerateCall>> Generate(GenerateRequest request,
                                                                 std::shared_ptr<GenerateSink> sink) = 0;
  /// Whether Generate might take a request of these sizes, for a door that would have to copy it first. Errors: those
  /// with which Generate would refuse it.
  virtual absl::Status CheckSizes(const std::string& model, const RequestSizes& sizes) = 0;
  /// For a door that refuses a request itself: it is counted and logged like those that Generate refuses.
  virtual void Refused(GenerateRequest request, const absl::Status& why) = 0;
  /// The ids that Generate would use; more than the model takes, too, unless the text is too long for it however it is
  /// tokenised: OUT_OF_RANGE. Other errors as Generate's.
  virtual absl::StatusOr<std::vector<int32_t>> Tokenize(const std::string& model,
                                                        const std::variant<std::string, Chat>& input,
                                                        bool parse_special) = 0;
  /// Models with at least one live engine, by name. UNAVAILABLE: the broker has not been heard yet.
  virtual absl::StatusOr<std::vector<ModelInfo>> ListModels() = 0;
  virtual absl::StatusOr<std::string> Detokenize(const std::string& model, std::span<const int32_t> ids) = 0;
};

}  // namespace swiftcache::gateway::relay
