// SPDX-License-Identifier: Apache-2.0
// Reads and checks UTF-8 as Unicode 15, table 3-7, defines it: no surrogates, no overlong forms, nothing above U+10FFFF.
//
//   Utf8Character c = NextCharacter("\xe4\xbd\xa0!");  // {0x4f60, 3 bytes, kValid}
//   bool valid = IsValidUtf8(text);
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace swiftcache {

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

/// The offset of the first byte at which no valid character begins; nothing where the whole text is valid.
std::optional<size_t> FindInvalidUtf8(std::string_view text);

inline bool IsValidUtf8(std::string_view text) { return !FindInvalidUtf8(text).has_value(); }

/// Code points; where the text is not valid, the bytes that continue no character.
int64_t CountCharacters(std::string_view text);

}  // namespace swiftcache
