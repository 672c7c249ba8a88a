// SPDX-License-Identifier: Apache-2.0
#include "gateway/text/jinja/string_literal.h"

#include <charconv>

#include "gateway/text/jinja/unicode.h"

namespace swiftcache::gateway::text::jinja {
namespace {

/// Reads `size` hexadecimal digits at `*at`.
std::optional<char32_t> Hex(std::string_view source, size_t* at, size_t size) {
  if (source.size() - *at < size) return std::nullopt;
  uint32_t value = 0;
  auto result = std::from_chars(source.data() + *at, source.data() + *at + size, value, 16);
  if (result.ec != std::errc() || result.ptr != source.data() + *at + size) return std::nullopt;
  *at += size;
  return value;
}

char32_t Octal(std::string_view source, size_t* at) {
  char32_t value = 0;
  for (int i = 0; i < 3 && *at < source.size() && source[*at] >= '0' && source[*at] <= '7'; ++i, ++*at) {
    value = value * 8 + static_cast<char32_t>(source[*at] - '0');
  }
  return value;
}

/// The escape behind a backslash at `*at`; false where it cannot be decoded.
bool DecodeEscape(std::string_view source, size_t* at, std::string* out) {
  static constexpr std::string_view kNames = "\\'\"abfnrtv", kValues = "\\'\"\a\b\f\n\r\t\v";
  char c = source[*at];
  if (c >= '0' && c <= '7') return AppendPoint(out, Octal(source, at));
  ++*at;
  if (c == '\n') return true;
  if (size_t which = kNames.find(c); which != std::string_view::npos) {
    *out += kValues[which];
    return true;
  }
  if (c == 'N') return false;
  if (c == 'x' || c == 'u' || c == 'U') {
    auto point = Hex(source, at, c == 'x' ? 2 : c == 'u' ? 4 : 8);
    return point && AppendPoint(out, *point);
  }
  *out += '\\';
  *out += c;
  return true;
}

}  // namespace

std::optional<std::string> DecodeStringLiteral(std::string_view source) {
  std::string out;
  for (size_t at = 0; at < source.size();) {
    if (source[at] != '\\') {
      out += source[at++];
      continue;
    }
    if (++at >= source.size() || !DecodeEscape(source, &at, &out)) return std::nullopt;
  }
  return out;
}

}  // namespace swiftcache::gateway::text::jinja
