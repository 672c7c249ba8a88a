// SPDX-License-Identifier: Apache-2.0
#include "gateway/text/tokenizer.h"

#include <algorithm>
#include <utility>

#include "common/base/status_macros.h"
#include "common/base/utf8.h"
#include "gateway/text/added_token_matcher.h"
#include "gateway/text/bpe_model.h"
#include "gateway/text/normalizer.h"
#include "gateway/text/pre_tokenizer.h"
#include "gateway/text/spec_check.h"
#include "gateway/text/token_table.h"
#include "gateway/text/utf8.h"

namespace swiftcache::gateway::text {
namespace {

/// Which added tokens are looked for, with and without the special ones.
struct AddedTokens {
  AddedTokenMatcher in_raw_text, in_normalized_text;

  AddedTokens(const TokenizerSpec& spec, const std::vector<AddedToken>& tokens, bool with_special) {
    for (const AddedToken& token : tokens) {
      const std::string& content = spec.tokens[token.id];
      if ((token.special && !with_special) || !IsValidUtf8(content)) continue;
      if (token.normalized) {
        in_normalized_text.Add(Normalize(spec, content), token);
      } else {
        in_raw_text.Add(content, token);
      }
    }
  }
};

/// Whether no token of the vocabulary has a space after another character. Then nothing merges across the beginning of
/// a word, and SentencePiece's text, which is one piece, may be split into words without changing the result.
bool SpacesOnlyBegin(const TokenizerSpec& spec) {
  const auto has_inner_space = [](std::string_view token) {
    while (token.starts_with(kSpaceMark)) token.remove_prefix(kSpaceMark.size());
    return token.find(kSpaceMark) != std::string_view::npos;
  };
  return std::none_of(spec.tokens.begin(), spec.tokens.end(), has_inner_space);
}

std::vector<PreTokenizerStep> StepsOf(const TokenizerSpec& spec) {
  const bool cut_words =
      spec.kind == TokenizerKind::kSentencePieceBpe && spec.pre_tokenizer.empty() && SpacesOnlyBegin(spec);
  if (!cut_words) return spec.pre_tokenizer;
  return {{.kind = PreTokenizerStep::Kind::kSplitRegex, .regex = "\\x{2581}+[^\\x{2581}]*"}};
}

class BpeTokenizer final : public Tokenizer {
 public:
  BpeTokenizer(TokenizerSpec spec, TokenTable table, BpeModel model, PreTokenizer pre_tokenizer)
      : spec_(std::move(spec)),
        table_(std::move(table)),
        model_(std::move(model)),
        pre_tokenizer_(std::move(pre_tokenizer)),
        all_added_(spec_, table_.added(), /*with_special=*/true),
        plain_added_(spec_, table_.added(), /*with_special=*/false) {}

  std::vector<int32_t> Encode(std::string_view text, const EncodeOptions& options) const override {
    std::vector<int32_t> ids;
    if (options.add_special && spec_.add_bos) ids.push_back(*spec_.bos_id);
    const AddedTokens& added = options.parse_special ? all_added_ : plain_added_;
    if (IsValidUtf8(text)) {
      EncodeText(text, added, &ids);
    } else {
      EncodeText(ReplaceInvalidUtf8(text), added, &ids);
    }
    if (options.add_special && spec_.add_eos) ids.push_back(*spec_.eos_id);
    return ids;
  }

  std::string Decode(std::span<const int32_t> ids, bool skip_special) const override {
    std::string bytes;
    for (const int32_t id : ids) {
      if (!Contains(id) || (skip_special && IsSpecial(id))) continue;
      bytes += table_.bytes()[id];
    }
    std::string text = ReplaceInvalidUtf8(bytes);
    if (DropsLeadingSpace(spec_) && text.starts_with(' ')) text.erase(0, 1);
    return text;
  }

  std::string TokenBytes(int32_t id) const override { return Contains(id) ? table_.bytes()[id] : ""; }
  bool IsSpecial(int32_t id) const override { return table_.IsSpecial(id); }
  bool DropsUnknownText() const override { return model_.DropsUnknownText(); }
  int64_t vocab_size() const override { return static_cast<int64_t>(spec_.tokens.size()); }
  std::optional<int32_t> bos_id() const override { return spec_.bos_id; }
  std::optional<int32_t> eos_id() const override { return spec_.eos_id; }
  const TokenizerSpec& spec() const override { return spec_; }

 private:
  struct Scratch {
    PreTokenizer::Scratch pre_tokenizer;
    BpeModel::Scratch model;
  };

  bool Contains(int32_t id) const { return id >= 0 && id < vocab_size(); }

  void EncodeText(std::string_view text, const AddedTokens& added, std::vector<int32_t>* ids) const {
    Scratch scratch;
    added.in_raw_text.Split(text, [&](std::string_view raw, const AddedToken* token) {
      const std::string normalized = Normalize(spec_, raw);
      added.in_normalized_text.Split(normalized, [&](std::string_view plain, const AddedToken* inner) {
        const bool begins_text = raw.data() == text.data() && plain.data() == normalized.data();
        const std::string_view prefix = begins_text ? FirstPrefix(spec_, plain) : "";
        if (prefix.empty()) {
          EncodePlain(plain, &scratch, ids);
        } else {
          EncodePlain(std::string(prefix).append(plain), &scratch, ids);
        }
        AppendAdded(inner, &scratch, ids);
      });
      AppendAdded(token, &scratch, ids);
    });
  }

  void EncodePlain(std::string_view text, Scratch* scratch, std::vector<int32_t>* ids) const {
    pre_tokenizer_.Split(text, &scratch->pre_tokenizer,
                         [&](std::string_view piece) { model_.Encode(piece, &scratch->model, ids); });
  }

  static void AppendAdded(const AddedToken* token, Scratch* scratch, std::vector<int32_t>* ids) {
    if (token == nullptr) return;
    ids->push_back(token->id);
    scratch->model.last_was_unknown = false;
  }

  const TokenizerSpec spec_;
  const TokenTable table_;
  const BpeModel model_;
  const PreTokenizer pre_tokenizer_;
  const AddedTokens all_added_, plain_added_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::Create(TokenizerSpec spec) {
  RETURN_IF_ERROR(CheckSpec(spec));
  TokenTable table(spec);
  ASSIGN_OR_RETURN(BpeModel model, BpeModel::Create(spec, table.bytes()));
  ASSIGN_OR_RETURN(PreTokenizer pre_tokenizer, PreTokenizer::Create(StepsOf(spec)));
  return std::make_unique<BpeTokenizer>(std::move(spec), std::move(table), std::move(model), std::move(pre_tokenizer));
}

}  // namespace swiftcache::gateway::text
