// SPDX-License-Identifier: Apache-2.0
// UTF-8 as tokenizers need it: writing, repairing, and the few character classes that added tokens ask for.
//
//   std::string text = ReplaceInvalidUtf8("caf\xc3");            // "caf" and U+FFFD
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace swiftcache::gateway::text {

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
