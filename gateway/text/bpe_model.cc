// SPDX-License-Identifier: Apache-2.0
#include "gateway/text/bpe_model.h"

#include <algorithm>
#include <functional>
#include <set>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/base/utf8.h"
#include "gateway/text/byte_alphabet.h"
#include "gateway/text/utf8.h"

namespace swiftcache::gateway::text {
namespace {

constexpr int32_t kNoToken = -1;
// SentencePiece's longest piece is 16 characters unless asked otherwise; this bounds the quadratic number of cuts.
constexpr size_t kMaxScoredTokenBytes = 512;

absl::string_view ToAbsl(std::string_view text) { return {text.data(), text.size()}; }

/// Control and byte tokens never come out of plain text.
bool IsText(const TokenizerSpec& spec, int32_t id) {
  const TokenType type = spec.token_types[id];
  return !spec.tokens[id].empty() && type != TokenType::kControl && type != TokenType::kUnknown &&
         type != TokenType::kByte;
}

}  // namespace

BpeModel::BpeModel(const TokenizerSpec& spec)
    : byte_level_(spec.kind == TokenizerKind::kByteLevelBpe),
      byte_fallback_(spec.byte_fallback),
      fuse_unk_(spec.fuse_unk),
      vocab_size_(static_cast<int32_t>(spec.tokens.size())),
      unk_id_(spec.unk_id) {}

absl::StatusOr<BpeModel> BpeModel::Create(const TokenizerSpec& spec, const std::vector<std::string>& bytes) {
  BpeModel model(spec);
  model.ids_.reserve(spec.tokens.size());
  for (int32_t id = 0; id < model.vocab_size_; ++id) {
    if (IsText(spec, id)) model.ids_.try_emplace(spec.tokens[id], id);
  }
  model.FindByteTokens(spec, bytes);
  if (!model.byte_level_ && !spec.scores.empty()) {
    model.AddScoredMerges(spec);
  } else {
    RETURN_IF_ERROR(model.AddRankedMerges(spec));
  }
  model.FindWholePieces(spec, bytes);
  return model;
}

int32_t BpeModel::IdOf(std::string_view text) const {
  const auto found = ids_.find(ToAbsl(text));
  return found == ids_.end() ? kNoToken : found->second;
}

/// The symbol that `text` is before or after merging, kNoToken if it is neither a token nor one character.
int32_t BpeModel::SymbolOf(std::string_view text) const {
  const int32_t id = IdOf(text);
  if (id != kNoToken) return id;
  const Utf8Character c = NextCharacter(text);
  const bool one_character = c.kind == Utf8Character::Kind::kValid && c.bytes == text.size();
  return one_character ? vocab_size_ + static_cast<int32_t>(c.code_point) : kNoToken;
}

absl::Status BpeModel::AddRankedMerges(const TokenizerSpec& spec) {
  absl::flat_hash_map<absl::string_view, int32_t> all;  // a merge may give any token, whatever its type
  for (int32_t id = 0; id < vocab_size_; ++id) all.try_emplace(spec.tokens[id], id);
  merges_.Reserve(static_cast<int64_t>(spec.merges.size()));
  for (size_t rank = 0; rank < spec.merges.size(); ++rank) {
    const auto [left, right] = spec.merges[rank];
    const std::string text = spec.tokens[left] + spec.tokens[right];
    const auto result = all.find(text);
    if (result == all.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat("merges[", rank, "]: tokens ", left, " and ", right, " give '", text,
                       "', which is not in the vocabulary; wanted: a token for every merge"));
    }
    merges_.Add(left, right, static_cast<int32_t>(rank), result->second);
  }
  return absl::OkStatus();
}

void BpeModel::AddScoredMerges(const TokenizerSpec& spec) {
  std::set<float, std::greater<>> scores;
  for (const auto& [token, id] : ids_) scores.insert(spec.scores[id]);
  absl::flat_hash_map<float, int32_t> rank;  // equal scores: equal rank, so the leftmost goes first
  for (const float score : scores) rank.emplace(score, static_cast<int32_t>(rank.size()));
  for (const auto& [token, id] : ids_) AddCuts(token, id, rank.at(spec.scores[id]));
}

void BpeModel::AddCuts(const std::string& token, int32_t id, int32_t rank) {
  if (token.size() > kMaxScoredTokenBytes || !IsValidUtf8(token)) return;
  const std::string_view text = token;
  for (size_t cut = NextCharacter(text).bytes; cut < text.size(); cut += NextCharacter(text.substr(cut)).bytes) {
    const int32_t left = SymbolOf(text.substr(0, cut));
    const int32_t right = SymbolOf(text.substr(cut));
    if (left != kNoToken && right != kNoToken) merges_.Add(left, right, rank, id);
  }
}

void BpeModel::FindByteTokens(const TokenizerSpec& spec, const std::vector<std::string>& bytes) {
  byte_ids_.fill(kNoToken);
  if (byte_level_) {
    for (int byte = 0; byte < 256; ++byte) {
      std::string letter;
      AppendUtf8(ByteToLetter(static_cast<uint8_t>(byte)), &letter);
      byte_ids_[byte] = IdOf(letter);
    }
    return;
  }
  for (int32_t id = vocab_size_ - 1; id >= 0; --id) {
    if (spec.token_types[id] == TokenType::kByte && bytes[id].size() == 1)
      byte_ids_[static_cast<uint8_t>(bytes[id][0])] = id;
  }
}

/// Finds the tokens that the merges turn a text into as a whole. Most words are such tokens, so this is done once,
/// here, instead of at every Encode.
void BpeModel::FindWholePieces(const TokenizerSpec& spec, const std::vector<std::string>& bytes) {
  Scratch scratch;
  std::vector<int32_t> merged;
  for (int32_t id = 0; id < vocab_size_; ++id) {
    const std::string& piece = byte_level_ ? bytes[id] : spec.tokens[id];
    if (IdOf(spec.tokens[id]) != id || piece.empty() || !IsValidUtf8(piece)) continue;
    if (!spec.ignore_merges) {
      merged.clear();
      EncodeByMerges(piece, &scratch, &merged);
      if (merged.size() != 1 || merged[0] != id) continue;
    }
    whole_.try_emplace(piece, id);
  }
}

void BpeModel::Symbolize(std::string_view piece, std::vector<int32_t>* symbols) const {
  symbols->clear();
  if (byte_level_) {
    for (const char c : piece) {
      const int32_t id = byte_ids_[static_cast<uint8_t>(c)];
      if (id != kNoToken) symbols->push_back(id);
    }
    return;
  }
  for (size_t at = 0; at < piece.size();) {
    const Utf8Character c = NextCharacter(piece.substr(at));
    symbols->push_back(SymbolOf(piece.substr(at, c.bytes)));
    at += c.bytes;
  }
}

void BpeModel::AppendUnknown(char32_t character, Scratch* scratch, std::vector<int32_t>* out) const {
  std::string bytes;
  AppendUtf8(character, &bytes);
  const auto has_token = [this](char c) { return byte_ids_[static_cast<uint8_t>(c)] != kNoToken; };
  if (byte_fallback_ && std::all_of(bytes.begin(), bytes.end(), has_token)) {
    for (const char c : bytes) out->push_back(byte_ids_[static_cast<uint8_t>(c)]);
    scratch->last_was_unknown = false;
    return;
  }
  if (unk_id_ && !(fuse_unk_ && scratch->last_was_unknown)) out->push_back(*unk_id_);
  scratch->last_was_unknown = true;
}

bool BpeModel::DropsUnknownText() const {
  const bool spells_every_byte =
      byte_fallback_ && std::find(byte_ids_.begin(), byte_ids_.end(), kNoToken) == byte_ids_.end();
  return !byte_level_ && (fuse_unk_ || !unk_id_.has_value()) && !spells_every_byte;
}

void BpeModel::EncodeByMerges(std::string_view piece, Scratch* scratch, std::vector<int32_t>* out) const {
  Symbolize(piece, &scratch->symbols);
  merges_.Run(&scratch->symbols, &scratch->merges);
  for (const int32_t symbol : scratch->symbols) {
    if (symbol >= vocab_size_) {
      AppendUnknown(static_cast<char32_t>(symbol - vocab_size_), scratch, out);
    } else {
      out->push_back(symbol);
      scratch->last_was_unknown = false;
    }
  }
}

void BpeModel::Encode(std::string_view piece, Scratch* scratch, std::vector<int32_t>* out) const {
  const auto whole = whole_.find(ToAbsl(piece));
  if (whole == whole_.end()) return EncodeByMerges(piece, scratch, out);
  out->push_back(whole->second);
  scratch->last_was_unknown = false;
}

}  // namespace swiftcache::gateway::text
