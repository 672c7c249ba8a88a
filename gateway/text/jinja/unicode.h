// SPDX-License-Identifier: Apache-2.0
// Code points, as Python's str sees them, over UTF-8 bytes. A byte that begins no valid sequence counts as one code
// point.
//
//   for (int64_t at = 0; at < text.size();) Use(NextPoint(text, &at));
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace swiftcache::gateway::text::jinja {

/// The code point at `*at`, which moves behind it; U+FFFD for an invalid byte. REQUIRES: *at < text.size().
char32_t NextPoint(std::string_view text, int64_t* at);
int64_t CountPoints(std::string_view text);
/// The byte offset of code point `n`; text.size() where there are fewer.
int64_t PointOffset(std::string_view text, int64_t n);
/// False for a surrogate or a value above U+10FFFF; nothing is appended then.
bool AppendPoint(std::string* out, char32_t point);

/// str.isspace, isprintable, isalpha, isdigit and isupper/islower of one character.
bool IsSpace(char32_t point);
bool IsPrintable(char32_t point);
bool IsAlpha(char32_t point);
bool IsDigit(char32_t point);
bool IsWord(char32_t point);  // a character of an identifier
bool IsUpper(char32_t point);
bool IsLower(char32_t point);

/// Case mappings of one character. Simple mappings, and U+00DF to "SS"/"Ss".
void AppendUpper(std::string* out, char32_t point);
void AppendLower(std::string* out, char32_t point);
void AppendTitle(std::string* out, char32_t point);

}  // namespace swiftcache::gateway::text::jinja
