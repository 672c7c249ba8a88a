// SPDX-License-Identifier: Apache-2.0
#include "gateway/text/jinja/unicode.h"

#include <utf8proc.h>

#include <cstring>

namespace swiftcache::gateway::text::jinja {
namespace {

constexpr char32_t kSharpS = 0xDF;

bool InCategories(char32_t point, int first, int last) {
  int category = utf8proc_category(static_cast<utf8proc_int32_t>(point));
  return category >= first && category <= last;
}

/// How many bytes at the beginning are ASCII, rounded down to whole words.
int64_t AsciiPrefix(std::string_view text) {
  size_t at = 0;
  for (uint64_t word = 0; at + sizeof(word) <= text.size(); at += sizeof(word)) {
    std::memcpy(&word, text.data() + at, sizeof(word));
    if ((word & 0x8080808080808080) != 0) break;
  }
  return static_cast<int64_t>(at);
}

}  // namespace

char32_t NextPoint(std::string_view text, int64_t* at) {
  auto* bytes = reinterpret_cast<const utf8proc_uint8_t*>(text.data()) + *at;
  if (*bytes < 0x80) {
    ++*at;
    return *bytes;
  }
  utf8proc_int32_t point = -1;
  utf8proc_ssize_t n = utf8proc_iterate(bytes, static_cast<int64_t>(text.size()) - *at, &point);
  *at += n > 0 ? n : 1;
  return n > 0 ? static_cast<char32_t>(point) : 0xFFFD;
}

int64_t CountPoints(std::string_view text) {
  int64_t at = AsciiPrefix(text), count = at;
  for (; at < static_cast<int64_t>(text.size()); ++count) NextPoint(text, &at);
  return count;
}

int64_t PointOffset(std::string_view text, int64_t n) {
  int64_t at = 0;
  for (int64_t i = 0; i < n && at < static_cast<int64_t>(text.size()); ++i) NextPoint(text, &at);
  return at;
}

bool AppendPoint(std::string* out, char32_t point) {
  utf8proc_uint8_t bytes[4];
  utf8proc_ssize_t n = utf8proc_encode_char(static_cast<utf8proc_int32_t>(point), bytes);
  if (n <= 0 || (point >= 0xD800 && point < 0xE000)) return false;
  out->append(reinterpret_cast<const char*>(bytes), static_cast<size_t>(n));
  return true;
}

bool IsSpace(char32_t point) {
  if (point < 0x80) return point == ' ' || (point >= 0x09 && point <= 0x0D) || (point >= 0x1C && point <= 0x1F);
  return point == 0x85 || InCategories(point, UTF8PROC_CATEGORY_ZS, UTF8PROC_CATEGORY_ZP);
}

bool IsPrintable(char32_t point) {
  if (point == ' ') return true;
  return !InCategories(point, UTF8PROC_CATEGORY_ZS, UTF8PROC_CATEGORY_CO) &&
         !InCategories(point, UTF8PROC_CATEGORY_CN, UTF8PROC_CATEGORY_CN);
}

bool IsAlpha(char32_t point) { return InCategories(point, UTF8PROC_CATEGORY_LU, UTF8PROC_CATEGORY_LO); }
bool IsDigit(char32_t point) { return InCategories(point, UTF8PROC_CATEGORY_ND, UTF8PROC_CATEGORY_ND); }
bool IsUpper(char32_t point) { return InCategories(point, UTF8PROC_CATEGORY_LU, UTF8PROC_CATEGORY_LU); }
bool IsLower(char32_t point) { return InCategories(point, UTF8PROC_CATEGORY_LL, UTF8PROC_CATEGORY_LL); }
bool IsWord(char32_t point) { return point == '_' || InCategories(point, UTF8PROC_CATEGORY_LU, UTF8PROC_CATEGORY_NO); }

void AppendUpper(std::string* out, char32_t point) {
  if (point == kSharpS) {
    *out += "SS";
  } else {
    AppendPoint(out, static_cast<char32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(point))));
  }
}

void AppendLower(std::string* out, char32_t point) {
  AppendPoint(out, static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(point))));
}

void AppendTitle(std::string* out, char32_t point) {
  if (point == kSharpS) {
    *out += "Ss";
  } else {
    AppendPoint(out, static_cast<char32_t>(utf8proc_totitle(static_cast<utf8proc_int32_t>(point))));
  }
}

}  // namespace swiftcache::gateway::text::jinja
