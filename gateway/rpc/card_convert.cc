// SPDX-License-Identifier: Apache-2.0
#include "gateway/rpc/card_convert.h"

#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/base/sha256.h"
#include "common/base/status_macros.h"
#include "common/rpc/card_size.h"
#include "swiftcache/v1/engine.pb.h"

namespace swiftcache::gateway::rpc {
namespace {

text::TokenType TypeOf(v1::TokenizerSpec::TokenType type) {
  switch (type) {
    case v1::TokenizerSpec::UNKNOWN:
      return text::TokenType::kUnknown;
    case v1::TokenizerSpec::CONTROL:
      return text::TokenType::kControl;
    case v1::TokenizerSpec::USER_DEFINED:
      return text::TokenType::kUserDefined;
    case v1::TokenizerSpec::UNUSED:
      return text::TokenType::kUnused;
    case v1::TokenizerSpec::BYTE:
      return text::TokenType::kByte;
    default:
      return text::TokenType::kNormal;
  }
}

text::PreTokenizerStep StepOf(const v1::TokenizerSpec::PreTokenizerStep& in) {
  if (in.step_case() == v1::TokenizerSpec::PreTokenizerStep::kSplitRegex) {
    return {.kind = text::PreTokenizerStep::Kind::kSplitRegex, .regex = in.split_regex()};
  }
  return {.kind = text::PreTokenizerStep::Kind::kIndividualDigits, .regex = {}};
}

text::AddedToken AddedTokenOf(const v1::TokenizerSpec::AddedToken& in) {
  return {.id = in.id(),
          .special = in.special(),
          .lstrip = in.lstrip(),
          .rstrip = in.rstrip(),
          .single_word = in.single_word(),
          .normalized = in.normalized()};
}

absl::Status CheckKnown(const v1::TokenizerSpec& in) {
  if (in.kind() != v1::TokenizerSpec::BYTE_LEVEL_BPE && in.kind() != v1::TokenizerSpec::SENTENCEPIECE_BPE) {
    return absl::InvalidArgumentError(absl::StrCat("model card: tokenizer.kind is ", in.kind(),
                                                   ", wants BYTE_LEVEL_BPE or SENTENCEPIECE_BPE: update the gateway"));
  }
  if (in.normalizer() != v1::TokenizerSpec::NONE && in.normalizer() != v1::TokenizerSpec::NFC) {
    return absl::InvalidArgumentError(absl::StrCat("model card: tokenizer.normalizer is ", in.normalizer(),
                                                   ", wants NONE or NFC: update the gateway"));
  }
  if (in.merges_size() % 2 != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("model card: tokenizer.merges has ", in.merges_size(), " ids, wants pairs"));
  }
  return absl::OkStatus();
}

void FillTables(v1::TokenizerSpec& in, text::TokenizerSpec& out) {
  out.tokens.reserve(in.tokens_size());
  for (std::string& token : *in.mutable_tokens()) out.tokens.push_back(std::move(token));
  for (int type : in.token_types()) out.token_types.push_back(TypeOf(static_cast<v1::TokenizerSpec::TokenType>(type)));
  out.scores.assign(in.scores().begin(), in.scores().end());
  out.merges.reserve(in.merges_size() / 2);
  for (int i = 0; i < in.merges_size(); i += 2) out.merges.emplace_back(in.merges(i), in.merges(i + 1));
  for (const auto& step : in.pre_tokenizer()) out.pre_tokenizer.push_back(StepOf(step));
  for (const auto& added : in.added_tokens()) out.added_tokens.push_back(AddedTokenOf(added));
}

text::TokenizerSpec SpecOf(v1::TokenizerSpec& in) {
  text::TokenizerSpec out;
  FillTables(in, out);
  out.kind = in.kind() == v1::TokenizerSpec::SENTENCEPIECE_BPE ? text::TokenizerKind::kSentencePieceBpe
                                                               : text::TokenizerKind::kByteLevelBpe;
  out.normalizer = in.normalizer() == v1::TokenizerSpec::NFC ? text::Normalizer::kNfc : text::Normalizer::kNone;
  out.add_space_prefix = in.add_space_prefix();
  out.byte_fallback = in.byte_fallback();
  out.ignore_merges = in.ignore_merges();
  out.add_bos = in.add_bos();
  out.add_eos = in.add_eos();
  if (in.has_bos_id()) out.bos_id = in.bos_id();
  if (in.has_eos_id()) out.eos_id = in.eos_id();
  if (in.has_unk_id()) out.unk_id = in.unk_id();
  out.fuse_unk = in.fuse_unk();
  out.remove_extra_whitespaces = in.remove_extra_whitespaces();
  out.escape_whitespaces = in.escape_whitespaces();
  out.space_prefix_first_only = in.space_prefix_first_only();
  return out;
}

}  // namespace

absl::StatusOr<fleet::ModelCard> ParseModelCard(const std::string& bytes, const std::string& hash) {
  if (const std::string found = Sha256Hex(bytes); found != hash) {
    return absl::DataLossError(
        absl::StrCat("model card: SHA-256 of ", bytes.size(), " bytes is ", found, ", wants ", absl::CHexEscape(hash)));
  }
  RETURN_IF_ERROR(CheckCardSize(bytes));
  v1::ModelCard card;
  if (!card.ParseFromString(bytes)) {
    return absl::InvalidArgumentError(absl::StrCat("model card: ", bytes.size(), " bytes are not a ModelCard message"));
  }
  RETURN_IF_ERROR(CheckKnown(card.tokenizer()));
  return fleet::ModelCard{.tokenizer = SpecOf(*card.mutable_tokenizer()),
                          .chat_template = card.chat_template(),
                          .vocab_size = card.vocab_size()};
}

}  // namespace swiftcache::gateway::rpc
