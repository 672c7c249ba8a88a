// SPDX-License-Identifier: Apache-2.0
#include "gateway/text/byte_alphabet.h"

#include <array>

#include "common/base/utf8.h"

namespace swiftcache::gateway::text {
namespace {

constexpr bool IsOwnLetter(int byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) || (byte >= 0xae && byte <= 0xff);
}

constexpr char32_t kFirstBorrowed = 256;

/// Printable Latin-1 bytes stand for themselves; the others, in order, for U+0100 and up.
constexpr std::array<char32_t, 256> MakeLetters() {
  std::array<char32_t, 256> letters{};
  char32_t next = kFirstBorrowed;
  for (int byte = 0; byte < 256; ++byte) letters[byte] = IsOwnLetter(byte) ? byte : next++;
  return letters;
}

constexpr std::array<char32_t, 256> kLetters = MakeLetters();
constexpr int kAlphabetEnd = 256 + 68;

constexpr std::array<int, kAlphabetEnd> MakeBytes() {
  std::array<int, kAlphabetEnd> bytes{};
  for (int& byte : bytes) byte = -1;
  for (int byte = 0; byte < 256; ++byte) bytes[kLetters[byte]] = byte;
  return bytes;
}

constexpr std::array<int, kAlphabetEnd> kBytes = MakeBytes();
static_assert(kLetters[' '] == 0x120 && kLetters[0xad] == kAlphabetEnd - 1 && kBytes[0x120] == ' ');

}  // namespace

char32_t ByteToLetter(uint8_t byte) { return kLetters[byte]; }

std::optional<std::string> LettersToBytes(std::string_view letters) {
  std::string bytes;
  for (size_t at = 0; at < letters.size();) {
    const Utf8Character c = NextCharacter(letters.substr(at));
    if (c.kind != Utf8Character::Kind::kValid || c.code_point >= kAlphabetEnd || kBytes[c.code_point] < 0)
      return std::nullopt;
    bytes.push_back(static_cast<char>(kBytes[c.code_point]));
    at += c.bytes;
  }
  return bytes;
}

}  // namespace swiftcache::gateway::text
