// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "services/ctl/client.h"
#include "services/ctl/percentiles.h"
#include "services/ctl/table.h"
#include "services/ctl/terminal.h"

namespace swiftcache::services::ctl {
namespace {

TEST(PercentilesTest, AreNearestRanks) {
  Percentiles values;
  EXPECT_EQ(values.At(0.5), absl::ZeroDuration());
  for (int i = 100; i >= 1; --i) values.Add(absl::Milliseconds(i));
  EXPECT_EQ(values.At(0), absl::Milliseconds(1));
  EXPECT_EQ(values.At(0.5), absl::Milliseconds(50));
  EXPECT_EQ(values.At(0.99), absl::Milliseconds(99));
  EXPECT_EQ(values.At(1), absl::Milliseconds(100));
  EXPECT_EQ(values.Mean(), absl::Milliseconds(50.5));
}

TEST(TableTest, ColumnsAreAsWideAsTheirWidestCell) {
  Table table({{"NAME"}, {"N", Table::kRight}});
  table.Add({"a", "100"});
  table.Add({"longer"});
  EXPECT_EQ(table.ToString(), "NAME      N\na       100\nlonger\n");
}

TEST(TableTest, BytesAreShownInTheLargestUnitThatFits) {
  EXPECT_EQ(ShowBytes(0), "0 B");
  EXPECT_EQ(ShowBytes(737280), "720 KiB");
  EXPECT_EQ(ShowBytes(13824), "13.5 KiB");
}

TEST(TerminalTest, ALongTextIsShownByItsBeginning) {
  const std::string first = "0  1\n2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19";
  EXPECT_EQ(Shortened(""), "");
  EXPECT_EQ(Shortened(first + " \n"), first + " \n");
  EXPECT_EQ(Shortened(first + "\n20 21 "), first + " ... (22 words)");
  std::string without_spaces = "a";
  for (int i = 0; i < 500; ++i) without_spaces += "\xE6\x97\xA5";  // three bytes each
  EXPECT_EQ(Shortened(without_spaces), without_spaces.substr(0, 1 + 3 * 133) + " ... (1501 bytes)");
}

TEST(TerminalTest, ControlCharactersOfAModelAreNotPassedOn) {
  EXPECT_EQ(WithoutControls("a\033[2Jb\r\n\tc\x7F \xC3\xA9"), "a?[2Jb?\n\tc? \xC3\xA9");
  EXPECT_EQ(WithoutControls("a\xC2\x9B"
                            "2Jb\xC2\xA0\xC2\x80"),
            "a?2Jb\xC2\xA0?")
      << "those beyond ASCII, too";
}

TEST(TurnTest, SpeedCountsTheTokensAfterTheFirst) {
  Turn turn;
  turn.tokens = 11;
  turn.time_to_first_token = absl::Seconds(1);
  turn.total = absl::Seconds(3);
  turn.prompt_tokens = 7;
  turn.cached_tokens = 5;
  EXPECT_DOUBLE_EQ(turn.tokens_per_second(), 5);
  EXPECT_EQ(turn.Summary(), "ttft 1000.0 ms, 5.0 tokens/s, 11 tokens; prompt 7 tokens, 5 from the cache");
  turn.leased_tokens = 3;
  EXPECT_THAT(turn.Summary(), testing::EndsWith("prompt 7 tokens, 5 from the cache, 3 of them in leased memory"));
  turn.total = turn.time_to_first_token + absl::Milliseconds(49);
  EXPECT_THAT(turn.Summary(), testing::StartsWith("ttft 1000.0 ms, 11 tokens; "));
  turn.tokens = 1;
  EXPECT_DOUBLE_EQ(turn.tokens_per_second(), 0);
}

}  // namespace
}  // namespace swiftcache::services::ctl
