// SPDX-License-Identifier: Apache-2.0
#include "gateway/text/utf8.h"

#include <gtest/gtest.h>

#include "common/base/utf8.h"

namespace swiftcache::gateway::text {
namespace {

constexpr char kFffd[] = "\xef\xbf\xbd";

std::string Fffd(int count) {
  std::string out;
  while (count-- > 0) out += kFffd;
  return out;
}

// The table of Unicode 15, section 3.9: 61 F1 80 80 E1 80 C2 62 80 63 80 BF 64.
TEST(Utf8, ReplacesEachMaximalSubpartByOneMark) {
  EXPECT_EQ(ReplaceInvalidUtf8("a\xf1\x80\x80\xe1\x80\xc2"
                               "b\x80"
                               "c\x80\xbf"
                               "d"),
            "a" + Fffd(3) + "b" + Fffd(1) + "c" + Fffd(2) + "d");
}

TEST(Utf8, RefusesOverlongFormsSurrogatesAndWhatIsAboveTheLastPlane) {
  EXPECT_EQ(ReplaceInvalidUtf8("\xc0\xaf"), Fffd(2));
  EXPECT_EQ(ReplaceInvalidUtf8("\xe0\x80\xaf"), Fffd(3));
  EXPECT_EQ(ReplaceInvalidUtf8("\xed\xa0\x80"), Fffd(3));
  EXPECT_EQ(ReplaceInvalidUtf8("\xf4\x90\x80\x80"), Fffd(4));
  EXPECT_EQ(ReplaceInvalidUtf8("\xff\xfe"), Fffd(2));
}

TEST(Utf8, KeepsEveryScalarValue) {
  for (char32_t c = 0; c <= 0x10ffff; ++c) {
    if (c >= 0xd800 && c <= 0xdfff) continue;
    std::string text;
    AppendUtf8(c, &text);
    const Utf8Character found = NextCharacter(text);
    ASSERT_EQ(found.code_point, c);
    ASSERT_EQ(found.bytes, text.size());
    ASSERT_TRUE(IsValidUtf8(text));
    ASSERT_EQ(CharacterBefore("x" + text, static_cast<int64_t>(text.size()) + 1), c);
  }
}

TEST(Utf8, HoldsBackAnUnfinishedCharacterAndNothingElse) {
  std::string bytes = "a\xf0\x9f\x98", out;
  MoveFinishedCharacters(&bytes, &out);
  EXPECT_EQ(out, "a");
  EXPECT_EQ(bytes, "\xf0\x9f\x98");
  bytes += "\x80";
  MoveFinishedCharacters(&bytes, &out);
  EXPECT_EQ(out, "a\xf0\x9f\x98\x80");
  EXPECT_EQ(bytes, "");
  bytes =
      "\xe4\xbd"
      "b";
  MoveFinishedCharacters(&bytes, &out);
  EXPECT_EQ(out, "a\xf0\x9f\x98\x80" + Fffd(1) + "b");
}

TEST(Utf8, KnowsWhiteSpaceAndWordsAsUnicodeDoes) {
  for (const int c : {0x09, 0x20, 0x85, 0xa0, 0x1680, 0x2028, 0x3000}) EXPECT_TRUE(IsWhiteSpace(c)) << c;
  for (const int c : {0x1c, 0x200b, 0x180e, 0xfeff, 0x61}) EXPECT_FALSE(IsWhiteSpace(c)) << c;
  for (const int c : {'a', '_', '7'}) EXPECT_TRUE(IsWordCharacter(c)) << c;
  for (const int c : {0xe9, 0x4f60, 0x301, 0x24b6}) EXPECT_TRUE(IsWordCharacter(c)) << c;
  for (const int c : {0x20, 0x2d, 0xb2, 0x3002, 0x1f600}) EXPECT_FALSE(IsWordCharacter(c)) << c;
}

}  // namespace
}  // namespace swiftcache::gateway::text
