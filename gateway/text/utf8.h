// SPDX-License-Identifier: Apache-2.0
// UTF-8 as tokenizers need it: walking, repairing, and the few character classes that added tokens ask for.
//
//   std::string text = ReplaceInvalidUtf8("caf\xc3");            // "caf" and U+FFFD
//   Utf8Character c = NextCharacter("\xe4\xbd\xa0!");            // {0x4f60, 3 bytes, kValid}
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace swiftcache::gateway::text {

/// The first character of a byte string. kInvalid: `bytes` is the length of the maximal subpart that one U+FFFD
/// replaces. kIncomplete: the string may be the beginning of a character.
struct Utf8Character {
  enum class Kind { kValid, kInvalid, kIncomplete };
  char32_t code_point = 0;
  int bytes = 0;
  Kind kind = Kind::kInvalid;
};

/// REQUIRES: `text` is not empty.
Utf8Character NextCharacter(std::string_view text);

bool IsValidUtf8(std::string_view text);
void AppendUtf8(char32_t code_point, std::string* out);

/// Bytes that are not UTF-8 become U+FFFD, one per maximal subpart (Unicode 15, section 3.9, "U+FFFD Substitution").
std::string ReplaceInvalidUtf8(std::string_view text);
/// The same for a stream: appends what is certain to `out` and leaves an unfinished character (at most 3 bytes) in
/// `bytes`.
void MoveFinishedCharacters(std::string* bytes, std::string* out);

/// Unicode's White_Space.
bool IsWhiteSpace(char32_t code_point);
/// \w of Unicode's regular expressions: letters, marks, decimal digits, connectors, joiners.
bool IsWordCharacter(char32_t code_point);

/// The last character before `end`, 0 at the beginning. REQUIRES: valid UTF-8.
char32_t CharacterBefore(std::string_view text, int64_t end);

}  // namespace swiftcache::gateway::text
