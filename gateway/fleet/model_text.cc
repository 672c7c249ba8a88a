// SPDX-License-Identifier: Apache-2.0
#include "gateway/fleet/model_text.h"

#include <algorithm>
#include <string>
#include <utility>

#include "common/base/status_macros.h"

namespace swiftcache::gateway::fleet {
namespace {

std::string SpecialText(const text::Tokenizer& tokenizer, std::optional<int32_t> id) {
  return id.has_value() ? tokenizer.TokenBytes(*id) : std::string();
}

absl::StatusOr<std::unique_ptr<text::ChatTemplate>> MakeChat(const std::string& source,
                                                             const text::Tokenizer& tokenizer) {
  if (source.empty()) {
    return absl::FailedPreconditionError(
        "the model has no chat template: send a prompt instead of messages, or serve a chat model");
  }
  return text::ChatTemplate::Create(source, {.bos_token = SpecialText(tokenizer, tokenizer.bos_id()),
                                             .eos_token = SpecialText(tokenizer, tokenizer.eos_id())});
}

// A spelling is never shorter than the bytes it stands for, but NFC may shrink text (at most threefold) and some
// tokenizers drop white space or what they do not know, where no bound holds.
int64_t MaxTokenBytes(const text::Tokenizer& tokenizer) {
  const text::TokenizerSpec& spec = tokenizer.spec();
  bool drops = spec.remove_extra_whitespaces || tokenizer.DropsUnknownText();
  for (const text::AddedToken& added : spec.added_tokens) drops = drops || added.lstrip || added.rstrip;
  if (drops) return 0;
  int64_t longest = 4;
  for (const std::string& token : spec.tokens) longest = std::max<int64_t>(longest, token.size());
  return longest * (spec.normalizer == text::Normalizer::kNfc ? 3 : 1);
}

}  // namespace

absl::StatusOr<std::shared_ptr<const ModelText>> ModelText::Create(ModelCard card) {
  std::shared_ptr<ModelText> made(new ModelText);  // shared: requests under way outlive a card's place in the cache
  ASSIGN_OR_RETURN(made->tokenizer_, text::Tokenizer::Create(std::move(card.tokenizer)));
  made->max_token_bytes_ = MaxTokenBytes(*made->tokenizer_);
  made->chat_ = MakeChat(card.chat_template, *made->tokenizer_);
  made->vocab_size_ = card.vocab_size > 0 ? card.vocab_size : made->tokenizer_->vocab_size();
  return std::shared_ptr<const ModelText>(std::move(made));
}

}  // namespace swiftcache::gateway::fleet
