// SPDX-License-Identifier: Apache-2.0
// The loader's TokenizerSpec as the gateway's, without the wire between them.
//
//   ASSIGN_OR_RETURN(Checkpoint model, engine::loader::OpenCheckpoint(path));
//   auto tokenizer = Tokenizer::Create(SpecFromLoader(model.card.tokenizer));
#pragma once

#include "engine/loader/model_card.h"
#include "gateway/text/tokenizer_spec.h"

namespace swiftcache::gateway::text {

inline void CopyLists(const engine::loader::TokenizerSpec& in, TokenizerSpec* out) {
  out->tokens = in.tokens;
  out->scores = in.scores;
  out->merges = in.merges;
  for (const auto type : in.token_types) out->token_types.push_back(static_cast<TokenType>(type));
  for (const auto& step : in.pre_tokenizer) {
    out->pre_tokenizer.push_back({static_cast<PreTokenizerStep::Kind>(step.kind), step.regex});
  }
  for (const auto& token : in.added_tokens) {
    out->added_tokens.push_back({.id = token.id,
                                 .special = token.special,
                                 .lstrip = token.lstrip,
                                 .rstrip = token.rstrip,
                                 .single_word = token.single_word,
                                 .normalized = token.normalized});
  }
}

inline TokenizerSpec SpecFromLoader(const engine::loader::TokenizerSpec& in) {
  TokenizerSpec out;
  CopyLists(in, &out);
  out.kind = static_cast<TokenizerKind>(in.kind);
  out.normalizer = static_cast<Normalizer>(in.normalizer);
  out.add_space_prefix = in.add_space_prefix;
  out.byte_fallback = in.byte_fallback;
  out.ignore_merges = in.ignore_merges;
  out.add_bos = in.add_bos;
  out.add_eos = in.add_eos;
  out.bos_id = in.bos_id;
  out.eos_id = in.eos_id;
  out.unk_id = in.unk_id;
  out.fuse_unk = in.fuse_unk;
  out.remove_extra_whitespaces = in.remove_extra_whitespaces;
  out.escape_whitespaces = in.escape_whitespaces;
  out.space_prefix_first_only = in.space_prefix_first_only;
  return out;
}

}  // namespace swiftcache::gateway::text
