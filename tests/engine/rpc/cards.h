// SPDX-License-Identifier: Apache-2.0
// A small model card with something in every field.
#pragma once

#include <string>

#include "engine/loader/model_card.h"

namespace swiftcache::engine {

inline loader::ModelCard SomeCard() {
  using loader::PreTokenizerStep;
  using loader::TokenType;
  loader::ModelCard card;
  card.chat_template = "{{ messages }}";
  card.vocab_size = 8;
  loader::TokenizerSpec& t = card.tokenizer;
  t.kind = loader::TokenizerKind::kSentencePieceBpe;
  t.tokens = {"<s>", "a", std::string("\xff\x00", 2), "aa"};
  t.token_types = {TokenType::kControl, TokenType::kNormal, TokenType::kByte, TokenType::kUserDefined};
  t.scores = {0.0f, -1.0f, -2.0f, -3.5f};
  t.merges = {{1, 1}, {1, 3}};
  t.pre_tokenizer = {{PreTokenizerStep::Kind::kSplitRegex, "\\p{L}+"}, {PreTokenizerStep::Kind::kIndividualDigits, ""}};
  t.normalizer = loader::Normalizer::kNfc;
  t.added_tokens = {{.id = 3, .special = true, .rstrip = true, .normalized = true}};
  t.add_space_prefix = t.add_bos = t.fuse_unk = t.escape_whitespaces = true;
  t.bos_id = 0;
  t.eos_id = 2;
  t.unk_id = 1;
  return card;
}

}  // namespace swiftcache::engine
