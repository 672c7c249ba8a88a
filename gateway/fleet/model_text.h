// SPDX-License-Identifier: Apache-2.0
// The text side of one model: tokenizer and chat template built from its card.
//
//   ASSIGN_OR_RETURN(auto text, ModelText::Create(std::move(card)));
//   std::vector<int32_t> ids = text->tokenizer().Encode("Hello", {});
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gateway/fleet/engine_client.h"
#include "gateway/text/chat_template.h"
#include "gateway/text/tokenizer.h"

namespace swiftcache::gateway::fleet {

/// Thread-safety: immutable. Ownership: owns tokenizer and template; shared by every request of the model.
/// Errors: Create: INVALID_ARGUMENT where the tokenizer cannot be built. A template that cannot be used is kept as an
/// error, which chat requests get: FAILED_PRECONDITION (the model has none) or ChatTemplate::Create's.
class ModelText {
 public:
  static absl::StatusOr<std::shared_ptr<const ModelText>> Create(ModelCard card);

  const text::Tokenizer& tokenizer() const { return *tokenizer_; }
  /// The template; REQUIRES: chat_status().ok().
  const text::ChatTemplate& chat() const { return **chat_; }
  absl::Status chat_status() const { return chat_.status(); }
  /// Ids of a prompt are below this: rows of the embedding, which may exceed the tokenizer's vocabulary.
  int64_t vocab_size() const { return vocab_size_; }
  /// No token stands for more bytes of text than this; 0 where the tokenizer may drop text.
  int64_t max_token_bytes() const { return max_token_bytes_; }

 private:
  ModelText() = default;

  std::unique_ptr<text::Tokenizer> tokenizer_;
  absl::StatusOr<std::unique_ptr<text::ChatTemplate>> chat_;
  int64_t vocab_size_ = 0;
  int64_t max_token_bytes_ = 0;
};

}  // namespace swiftcache::gateway::fleet
