// SPDX-License-Identifier: Apache-2.0
#include "engine/rpc/serialized_card.h"

#include "absl/strings/str_cat.h"
#include "common/base/sha256.h"
#include "common/base/status_macros.h"
#include "common/rpc/card_size.h"
#include "swiftcache/v1/engine.pb.h"

namespace swiftcache::engine::rpc {
namespace {

v1::TokenizerSpec::TokenType ToProto(loader::TokenType type) {
  switch (type) {
    case loader::TokenType::kNormal:
      return v1::TokenizerSpec::NORMAL;
    case loader::TokenType::kUnknown:
      return v1::TokenizerSpec::UNKNOWN;
    case loader::TokenType::kControl:
      return v1::TokenizerSpec::CONTROL;
    case loader::TokenType::kUserDefined:
      return v1::TokenizerSpec::USER_DEFINED;
    case loader::TokenType::kUnused:
      return v1::TokenizerSpec::UNUSED;
    case loader::TokenType::kByte:
      return v1::TokenizerSpec::BYTE;
  }
  return v1::TokenizerSpec::NORMAL;
}

void SetVocabulary(const loader::TokenizerSpec& spec, v1::TokenizerSpec& proto) {
  for (const std::string& token : spec.tokens) proto.add_tokens(token);
  for (const loader::TokenType type : spec.token_types) proto.add_token_types(ToProto(type));
  proto.mutable_scores()->Add(spec.scores.begin(), spec.scores.end());
  for (const auto& [left, right] : spec.merges) {
    proto.add_merges(left);
    proto.add_merges(right);
  }
  for (const loader::AddedToken& added : spec.added_tokens) {
    v1::TokenizerSpec::AddedToken& token = *proto.add_added_tokens();
    token.set_id(added.id);
    token.set_special(added.special);
    token.set_lstrip(added.lstrip);
    token.set_rstrip(added.rstrip);
    token.set_single_word(added.single_word);
    token.set_normalized(added.normalized);
  }
  if (spec.bos_id.has_value()) proto.set_bos_id(*spec.bos_id);
  if (spec.eos_id.has_value()) proto.set_eos_id(*spec.eos_id);
  if (spec.unk_id.has_value()) proto.set_unk_id(*spec.unk_id);
}

void SetRules(const loader::TokenizerSpec& spec, v1::TokenizerSpec& proto) {
  proto.set_kind(spec.kind == loader::TokenizerKind::kByteLevelBpe ? v1::TokenizerSpec::BYTE_LEVEL_BPE
                                                                   : v1::TokenizerSpec::SENTENCEPIECE_BPE);
  for (const loader::PreTokenizerStep& step : spec.pre_tokenizer) {
    v1::TokenizerSpec::PreTokenizerStep& added = *proto.add_pre_tokenizer();
    if (step.kind == loader::PreTokenizerStep::Kind::kSplitRegex) {
      added.set_split_regex(step.regex);
    } else {
      added.set_individual_digits(true);
    }
  }
  proto.set_normalizer(spec.normalizer == loader::Normalizer::kNfc ? v1::TokenizerSpec::NFC : v1::TokenizerSpec::NONE);
  proto.set_add_space_prefix(spec.add_space_prefix);
  proto.set_byte_fallback(spec.byte_fallback);
  proto.set_ignore_merges(spec.ignore_merges);
  proto.set_add_bos(spec.add_bos);
  proto.set_add_eos(spec.add_eos);
  proto.set_fuse_unk(spec.fuse_unk);
  proto.set_remove_extra_whitespaces(spec.remove_extra_whitespaces);
  proto.set_escape_whitespaces(spec.escape_whitespaces);
  proto.set_space_prefix_first_only(spec.space_prefix_first_only);
}

}  // namespace

absl::StatusOr<SerializedCard> SerializeModelCard(const loader::ModelCard& card) {
  v1::ModelCard proto;
  SetVocabulary(card.tokenizer, *proto.mutable_tokenizer());
  SetRules(card.tokenizer, *proto.mutable_tokenizer());
  proto.set_chat_template(card.chat_template);
  proto.set_vocab_size(card.vocab_size);
  SerializedCard result;
  if (static_cast<int64_t>(proto.ByteSizeLong()) > kMaxCardBytes) {  // before it is serialised: that ends at 2 GiB
    return absl::InvalidArgumentError(
        absl::StrCat("the model card takes ", proto.ByteSizeLong(), " bytes, wanted at most ", kMaxCardBytes));
  }
  result.bytes = proto.SerializeAsString();
  RETURN_IF_ERROR(CheckCardSize(result.bytes));
  // Parsers refuse strings that are not UTF-8: find them here.
  if (v1::ModelCard parsed; !parsed.ParseFromString(result.bytes)) {
    return absl::InvalidArgumentError(
        "the model's chat template or pre-tokeniser is not valid UTF-8; mend the model's files");
  }
  result.hash = Sha256Hex(result.bytes);
  return result;
}

}  // namespace swiftcache::engine::rpc
