// SPDX-License-Identifier: Apache-2.0
#include "gateway/text/nfc.h"

#include <gtest/gtest.h>
#include <utf8proc.h>

#include <cstdlib>
#include <random>

#include "gateway/text/utf8.h"

namespace swiftcache::gateway::text {
namespace {

std::string Reference(const std::string& text) {
  utf8proc_uint8_t* out = nullptr;
  const auto options = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE);
  const auto size = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                 static_cast<utf8proc_ssize_t>(text.size()), &out, options);
  EXPECT_GE(size, 0);
  std::string result(reinterpret_cast<char*>(out), size);
  std::free(out);
  return result;
}

TEST(Nfc, ComposesDecomposesAndOrders) {
  EXPECT_EQ(ToNfc("cafe\u0301"), "caf\u00e9");
  EXPECT_EQ(ToNfc("\u212b"), "\u00c5");              // Angstrom sign
  EXPECT_EQ(ToNfc("\u1100\u1161\u11a8"), "\uac01");  // Hangul
  EXPECT_EQ(ToNfc("\u0958"), "\u0915\u093c");        // excluded from composition
  EXPECT_EQ(ToNfc("a\u0301\u0316"), "\u00e1\u0316");
  EXPECT_EQ(ToNfc(std::string("a\0b", 3)), std::string("a\0b", 3));
  EXPECT_EQ(ToNfc(""), "");
}

TEST(Nfc, EqualsUtf8procOnRandomText) {
  const uint32_t seed = 20261;
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  const std::vector<std::pair<char32_t, char32_t>> ranges = {
      {0x20, 0x7e},     {0xc0, 0x17f},    {0x300, 0x36f},   {0x591, 0x5c7},   {0x900, 0x97f},
      {0x1100, 0x11ff}, {0x1e00, 0x1fff}, {0xac00, 0xd7a3}, {0xf900, 0xfaff}, {0x1d15e, 0x1d1c0}};
  for (int i = 0; i < 20'000; ++i) {
    std::string text;
    for (uint32_t n = random() % 12; n > 0; --n) {
      const auto [low, high] = ranges[random() % ranges.size()];
      AppendUtf8(low + random() % (high - low + 1), &text);
    }
    ASSERT_EQ(ToNfc(text), Reference(text));
  }
}

TEST(Nfc, OrdersAMillionMarksWithoutQuadraticTime) {
  std::string text = "a";
  for (int i = 0; i < 500'000; ++i) text += "\u0301\u0316";  // every pair is out of order
  const std::string composed = ToNfc(text);
  EXPECT_EQ(composed.substr(0, 4), "\u00e1\u0316");
  EXPECT_EQ(composed.size(), text.size() - 1);
}

}  // namespace
}  // namespace swiftcache::gateway::text
