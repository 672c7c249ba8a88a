// SPDX-License-Identifier: Apache-2.0
// The JSON of responses: whole ones and the chunks of a stream. Pure.
//
//   ResponseWriter writer(options, "chatcmpl-7", created);
//   out = writer.RoleChunk(0, nullptr) + writer.Chunk(0, added, nullptr) + std::string(kDone);
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gateway/openai/request.h"
#include "gateway/relay/relay.h"

namespace swiftcache::gateway::openai {

/// Units: tokens.
struct UsageTotals {
  int64_t prompt = 0, completion = 0;
  int64_t cached_local = 0, cached_donor = 0, cached_host = 0;
};

/// Logprobs of a continuation, as the JSON that they become, token by token: those of a whole answer, turned into JSON
/// at its end, would for a moment take many times as much, and hold up for long whoever brings the last token.
/// Thread-safety: none. Errors: none. Units: bytes.
class LogprobsJson {
 public:
  void Add(Endpoint endpoint, const relay::TokenLogprob& token);
  int64_t bytes() const;
  /// Appends it all to `out`; tokens that follow begin a new list, in the same text.
  void MoveTo(Endpoint endpoint, std::string& out);

 private:
  // Of chats the first alone: their "content". Each is the inside of a list.
  std::string tokens_, values_, tops_, offsets_;
  int64_t text_offset_ = 0;  // in characters
};

/// A whole continuation, or a part of one that is streamed.
struct Choice {
  std::string text;
  LogprobsJson logprobs;
  std::optional<fleet::FinishReason> finish;

  int64_t bytes() const { return static_cast<int64_t>(text.size()) + logprobs.bytes(); }
};

inline constexpr std::string_view kDone = "data: [DONE]\n\n";

/// Every method returns whole server-sent events ("data: ...\n\n"), except Whole; no other end of a line is in them, not
/// even one of Unicode's.
/// Thread-safety: immutable. Errors: none; bytes that are not UTF-8 become U+FFFD (but "bytes:\xe2\x82" in the logprobs
/// of completions), logarithms of zero -9999.
class ResponseWriter {
 public:
  ResponseWriter(ResponseOptions options, const std::string& id, int64_t created_s);

  /// Opens a chat choice. `usage`: on this chunk, where it is wanted.
  std::string RoleChunk(int32_t index, const std::optional<UsageTotals>& usage) const;
  /// What is new of a choice, and leaves nothing of it in `added`. `usage`: on this chunk, where it is wanted.
  std::string Chunk(int32_t index, Choice& added, const std::optional<UsageTotals>& usage) const;
  std::string UsageChunk(const UsageTotals& usage) const;
  /// The whole response, not streamed; index = position in `choices`.
  std::string Whole(std::vector<Choice> choices, const UsageTotals& usage) const;

 private:
  const ResponseOptions options_;
  const std::string head_;  // everything before the choices, of each chunk
};

/// GET /v1/models, and one of its entries.
std::string ModelList(const std::vector<relay::ModelInfo>& models, int64_t created_s);
std::string ModelEntry(const relay::ModelInfo& model, int64_t created_s);

}  // namespace swiftcache::gateway::openai
