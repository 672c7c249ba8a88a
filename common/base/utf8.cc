// SPDX-License-Identifier: Apache-2.0
#include "common/base/utf8.h"

#include <algorithm>
#include <array>
#include <cstdint>

namespace swiftcache {
namespace {

/// How many bytes a lead byte asks for, and the range its second byte must lie in.
struct Lead {
  int bytes = 0;
  uint8_t second_min = 0x80, second_max = 0xbf;
};

Lead LeadOf(uint8_t byte) {
  if (byte < 0x80) return {1};
  if (byte < 0xc2) return {0};
  if (byte < 0xe0) return {2};
  if (byte == 0xe0) return {3, 0xa0, 0xbf};
  if (byte == 0xed) return {3, 0x80, 0x9f};
  if (byte < 0xf0) return {3};
  if (byte == 0xf0) return {4, 0x90, 0xbf};
  if (byte < 0xf4) return {4};
  if (byte == 0xf4) return {4, 0x80, 0x8f};
  return {0};
}

constexpr std::array<uint8_t, 5> kLeadMask = {0, 0x7f, 0x1f, 0x0f, 0x07};

}  // namespace

Utf8Character NextCharacter(std::string_view text) {
  const auto first = static_cast<uint8_t>(text[0]);
  if (first < 0x80) return {first, 1, Utf8Character::Kind::kValid};
  const Lead lead = LeadOf(first);
  if (lead.bytes == 0) return {0, 1, Utf8Character::Kind::kInvalid};
  char32_t code_point = first & kLeadMask[lead.bytes];
  for (int i = 1; i < lead.bytes; ++i) {
    if (i == text.size()) return {0, i, Utf8Character::Kind::kIncomplete};
    const auto byte = static_cast<uint8_t>(text[i]);
    const uint8_t low = i == 1 ? lead.second_min : 0x80;
    const uint8_t high = i == 1 ? lead.second_max : 0xbf;
    if (byte < low || byte > high) return {0, i, Utf8Character::Kind::kInvalid};
    code_point = code_point << 6 | (byte & 0x3f);
  }
  return {code_point, lead.bytes, Utf8Character::Kind::kValid};
}

std::optional<size_t> FindInvalidUtf8(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    if (static_cast<uint8_t>(text[at]) < 0x80) {  // most of most texts
      ++at;
      continue;
    }
    const Utf8Character c = NextCharacter(text.substr(at));
    if (c.kind != Utf8Character::Kind::kValid) return at;
    at += c.bytes;
  }
  return std::nullopt;
}

int64_t CountCharacters(std::string_view text) {
  return std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<uint8_t>(c) & 0xC0) != 0x80; });
}

}  // namespace swiftcache
