// SPDX-License-Identifier: Apache-2.0
#include "common/base/utf8.h"

#include <gtest/gtest.h>
#include <utf8proc.h>

#include <string>

namespace swiftcache {
namespace {

using Kind = Utf8Character::Kind;

// A byte on each side of every border in the table of well-formed sequences.
constexpr unsigned char kBorders[] = {0x00, 0x41, 0x7f, 0x80, 0x8f, 0x90, 0x9f, 0xa0, 0xbf, 0xc0, 0xc1, 0xc2, 0xdf,
                                      0xe0, 0xe1, 0xec, 0xed, 0xee, 0xef, 0xf0, 0xf1, 0xf3, 0xf4, 0xf5, 0xff};

// The oracle: utf8proc takes character after character.
std::optional<size_t> FirstThatUtf8procRefuses(const std::string& text) {
  for (size_t at = 0; at < text.size();) {
    utf8proc_int32_t code_point = 0;
    const auto* bytes = reinterpret_cast<const utf8proc_uint8_t*>(text.data()) + at;
    const auto count = utf8proc_iterate(bytes, static_cast<utf8proc_ssize_t>(text.size() - at), &code_point);
    if (count <= 0) return at;
    at += static_cast<size_t>(count);
  }
  return std::nullopt;
}

void ExpectAsUtf8procFromHereOn(std::string* text, size_t max_bytes) {
  ASSERT_EQ(FindInvalidUtf8(*text), FirstThatUtf8procRefuses(*text)) << testing::PrintToString(*text);
  if (text->size() == max_bytes) return;
  for (const unsigned char byte : kBorders) {
    text->push_back(static_cast<char>(byte));
    ASSERT_NO_FATAL_FAILURE(ExpectAsUtf8procFromHereOn(text, max_bytes));
    text->pop_back();
  }
}

TEST(Utf8Test, AgreesWithUtf8procOnEveryTextOfAtMostFourBytesAtBorders) {
  std::string text;
  ExpectAsUtf8procFromHereOn(&text, 4);
}

TEST(Utf8Test, ReadsEveryScalarValue) {
  for (char32_t c = 0; c <= 0x10ffff; ++c) {
    if (c >= 0xd800 && c <= 0xdfff) continue;
    utf8proc_uint8_t bytes[4];
    const auto count = utf8proc_encode_char(static_cast<utf8proc_int32_t>(c), bytes);
    const std::string text(reinterpret_cast<const char*>(bytes), static_cast<size_t>(count));
    const Utf8Character found = NextCharacter(text);
    ASSERT_EQ(found.kind, Kind::kValid);
    ASSERT_EQ(found.code_point, c);
    ASSERT_EQ(found.bytes, count);
    ASSERT_TRUE(IsValidUtf8(text));
  }
}

TEST(Utf8Test, TellsAnUnfinishedCharacterFromABrokenOne) {
  const Utf8Character unfinished = NextCharacter("\xf0\x9f\x98");
  EXPECT_EQ(unfinished.kind, Kind::kIncomplete);
  EXPECT_EQ(unfinished.bytes, 3);
  const Utf8Character broken = NextCharacter("\xf0\x9fx");
  EXPECT_EQ(broken.kind, Kind::kInvalid);
  EXPECT_EQ(broken.bytes, 2) << "the maximal subpart";
}

TEST(Utf8Test, FindsWhereTheFirstInvalidCharacterBegins) {
  EXPECT_EQ(FindInvalidUtf8(""), std::nullopt);
  EXPECT_EQ(FindInvalidUtf8("caf\xc3\xa9"), std::nullopt);
  EXPECT_EQ(FindInvalidUtf8("caf\xc3"), 3u) << "cut";
  EXPECT_EQ(FindInvalidUtf8("\xc3\xa9\xed\xa0\x80"), 2u) << "a surrogate";
  EXPECT_EQ(FindInvalidUtf8("x\xc0\xaf"), 1u) << "an overlong form";
  EXPECT_EQ(FindInvalidUtf8("\xf4\x90\x80\x80"), 0u) << "above U+10FFFF";
}

TEST(Utf8Test, CountsCharactersAndNotBytes) {
  EXPECT_EQ(CountCharacters(""), 0);
  EXPECT_EQ(CountCharacters("caf\xc3\xa9 \xe4\xbd\xa0"), 6);
  EXPECT_EQ(CountCharacters("\xa9\xc3x"), 2) << "a byte that continues nothing, one that nothing continues";
}

}  // namespace
}  // namespace swiftcache
