// SPDX-License-Identifier: Apache-2.0
#include "gateway/text/added_token_matcher.h"

#include "common/base/utf8.h"
#include "gateway/text/utf8.h"

namespace swiftcache::gateway::text {
namespace {

bool IsWholeWord(std::string_view text, int64_t begin, int64_t end) {
  if (begin > 0 && IsWordCharacter(CharacterBefore(text, begin))) return false;
  return end == text.size() || !IsWordCharacter(NextCharacter(text.substr(end)).code_point);
}

int64_t SkipSpaceBackward(std::string_view text, int64_t from, int64_t least) {
  while (from > least) {
    const char32_t c = CharacterBefore(text, from);
    if (!IsWhiteSpace(c)) break;
    from -= c < 0x80 ? 1 : c < 0x800 ? 2 : 3;  // White_Space lies in the basic plane
  }
  return from;
}

int64_t SkipSpaceForward(std::string_view text, int64_t from) {
  while (from < text.size()) {
    const Utf8Character c = NextCharacter(text.substr(from));
    if (!IsWhiteSpace(c.code_point)) break;
    from += c.bytes;
  }
  return from;
}

}  // namespace

void AddedTokenMatcher::Add(std::string_view content, const AddedToken& token) {
  trie_.Insert(content, static_cast<int32_t>(tokens_.size()));
  tokens_.push_back(token);
}

AddedTokenMatcher::Match AddedTokenMatcher::LongestAt(std::string_view text, int64_t begin) const {
  Match longest;
  ByteTrie::Node node = ByteTrie::kRoot;
  for (int64_t at = begin; at < text.size(); ++at) {
    node = trie_.Child(node, static_cast<uint8_t>(text[at]));
    if (node == ByteTrie::kNone) break;
    if (trie_.value(node) != ByteTrie::kNoValue) longest = {&tokens_[trie_.value(node)], begin, at + 1};
  }
  return longest;
}

void AddedTokenMatcher::Split(std::string_view text,
                              absl::FunctionRef<void(std::string_view, const AddedToken*)> part) const {
  int64_t done = 0;
  for (int64_t at = 0; !trie_.empty() && at < text.size();) {
    Match match = LongestAt(text, at);
    if (match.token == nullptr) {
      ++at;
      continue;
    }
    at = match.end;
    if (match.token->single_word && !IsWholeWord(text, match.begin, match.end)) continue;
    if (match.token->lstrip) match.begin = SkipSpaceBackward(text, match.begin, done);
    if (match.token->rstrip) match.end = SkipSpaceForward(text, match.end);
    part(text.substr(done, match.begin - done), match.token);
    done = at = match.end;
  }
  if (done < text.size()) part(text.substr(done), nullptr);
}

}  // namespace swiftcache::gateway::text
