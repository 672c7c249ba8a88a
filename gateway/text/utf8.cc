// SPDX-License-Identifier: Apache-2.0
#include "gateway/text/utf8.h"

#include <utf8proc.h>

#include <array>

#include "common/base/utf8.h"

namespace swiftcache::gateway::text {
namespace {

constexpr std::string_view kReplacement = "\xef\xbf\xbd";

/// Appends the repaired text; an unfinished character at the end stays out. Returns how many bytes were used.
int64_t AppendRepaired(std::string_view text, std::string* out) {
  int64_t at = 0;
  while (at < text.size()) {
    const Utf8Character c = NextCharacter(text.substr(at));
    if (c.kind == Utf8Character::Kind::kIncomplete) break;
    out->append(c.kind == Utf8Character::Kind::kValid ? text.substr(at, c.bytes) : kReplacement);
    at += c.bytes;
  }
  return at;
}

}  // namespace

void AppendUtf8(char32_t code_point, std::string* out) {
  std::array<utf8proc_uint8_t, 4> bytes;
  const utf8proc_ssize_t count = utf8proc_encode_char(static_cast<utf8proc_int32_t>(code_point), bytes.data());
  out->append(reinterpret_cast<const char*>(bytes.data()), count);
}

std::string ReplaceInvalidUtf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  if (AppendRepaired(text, &out) < text.size()) out.append(kReplacement);
  return out;
}

void MoveFinishedCharacters(std::string* bytes, std::string* out) { bytes->erase(0, AppendRepaired(*bytes, out)); }

bool IsWhiteSpace(char32_t c) {
  return (c >= 0x09 && c <= 0x0d) || c == 0x20 || c == 0x85 || c == 0xa0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

bool IsWordCharacter(char32_t c) {
  if (c == 0x200c || c == 0x200d) return true;  // Join_Control
  if ((c >= 0x24b6 && c <= 0x24e9) || (c >= 0x1f130 && c <= 0x1f149) || (c >= 0x1f150 && c <= 0x1f169) ||
      (c >= 0x1f170 && c <= 0x1f189)) {
    return true;  // symbols that are Alphabetic
  }
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
      return true;
    default:
      return false;
  }
}

char32_t CharacterBefore(std::string_view text, int64_t end) {
  int64_t begin = end;
  while (begin > 0 && end - begin < 4) {
    --begin;
    if ((static_cast<uint8_t>(text[begin]) & 0xc0) != 0x80) break;
  }
  return begin == end ? 0 : NextCharacter(text.substr(begin, end - begin)).code_point;
}

}  // namespace swiftcache::gateway::text
