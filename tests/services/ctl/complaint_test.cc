// SPDX-License-Identifier: Apache-2.0
#include "services/ctl/complaint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <string>

#include "absl/strings/str_cat.h"

namespace swiftcache::services::ctl {
namespace {

using ::testing::HasSubstr;

// What is said of a command line.
std::string Of(const std::string& arguments) {
  CLI::App app("", "ctl");
  app.require_subcommand(1);
  CLI::App* say = app.add_subcommand("say");
  std::string prompt, warmth;
  int number = 0;
  double heat = 0, share = 0;
  say->add_option("--prompt", prompt, "the text")->required();
  say->add_option("--max_tokens", warmth);
  say->add_option("--seed", number);
  say->add_option("--heat", heat)->check(NumberIn(0, 2));
  say->add_option("--share", share)->check(NumberIn(0, 2'147'483'647, /*open=*/true));
  CLI::App* lease = app.add_subcommand("lease")->require_subcommand(1);
  lease->add_subcommand("ls");
  CLI::App* limit = lease->add_subcommand("limit");
  std::string model, bytes, broker;
  limit->add_option("model", model, "name of the model")->required();
  limit->add_option("bytes", bytes, "for example 512MiB")->required();
  app.add_option("--broker", broker);
  try {
    app.parse(arguments);
  } catch (const CLI::ParseError& error) {
    return Complaint(app, error);
  }
  return "";
}

TEST(ComplaintTest, ACommandOfCommandsNamesThem) {
  EXPECT_EQ(Of(""), "ctl: a command is missing, wanted one of: say, lease; ctl --help lists commands and flags");
  EXPECT_EQ(Of("lease"),
            "ctl: a command is missing, wanted one of: ls, limit; ctl lease --help lists commands and flags");
  EXPECT_THAT(Of("lease limt"), HasSubstr("unknown command 'limt' (did you mean limit?), wanted one of: ls, limit; "));
  EXPECT_THAT(Of("lease lend"), HasSubstr("unknown command 'lend', wanted one of: ls, limit; ctl lease --help"));
}

TEST(ComplaintTest, ATextThatStandsAloneIsOfferedItsFlag) {
  EXPECT_THAT(Of("say \"a b\""),
              HasSubstr("unexpected argument 'a b' (did you mean --prompt \"a b\"?); ctl say --help"));
  EXPECT_THAT(Of("say --prompt=x more"), HasSubstr("unexpected argument 'more'; ctl say"));
}

TEST(ComplaintTest, AValueThatIsNoNumberIsNamedWithWhatIsWanted) {
  EXPECT_THAT(Of("say --prompt=x --seed=a=b"), HasSubstr("--seed: found 'a=b', wanted a whole number; ctl say --help"));
  EXPECT_THAT(Of("say --prompt=x --seed 99999999999999999999"),
              HasSubstr("--seed: found '99999999999999999999', wanted a whole number; "));
  EXPECT_THAT(Of("say --prompt=x --heat ' = hot'"), HasSubstr("--heat: found ' = hot', wanted a number; "));
}

TEST(ComplaintTest, ANumberOutOfRangeIsNamedWithTheRange) {
  EXPECT_EQ(Of("say --prompt=x --heat=3"),
            "ctl: --heat: found '3', wanted a number in [0, 2]; ctl say --help lists its flags");
  for (const char* within : {"--heat=0", "--heat 2", "--share=2147483647"}) {
    EXPECT_EQ(Of(absl::StrCat("say --prompt=x ", within)), "") << within;
  }
  EXPECT_THAT(Of("say --prompt=x --heat -0.1"), HasSubstr("--heat: found '-0.1', wanted a number in [0, 2]; "));
  EXPECT_THAT(Of("say --prompt=x --heat nan"), HasSubstr("--heat: found 'nan', wanted a number in [0, 2]; "));
  EXPECT_THAT(Of("say --prompt=x --share 0"), HasSubstr("--share: found '0', wanted a number in (0, 2147483647]; "));
}

TEST(ComplaintTest, AnUnknownFlagIsNamedWithoutWhatMayBeItsValue) {
  EXPECT_THAT(Of("say --prompt=x --warmth 0.5"), HasSubstr("unknown flag --warmth; "));
  EXPECT_THAT(Of("say --prompt=x --warmth=0.5 -q"), HasSubstr("unknown flag --warmth, -q; "));
}

TEST(ComplaintTest, AFlagOfNearlyTheSameNameIsOffered) {
  EXPECT_THAT(Of("say --prompt=x --mux_tokens=5"),
              HasSubstr("unknown flag --mux_tokens (did you mean --max_tokens?); "));
  EXPECT_THAT(Of("say --prompt=x --brokr=y"), HasSubstr("unknown flag --brokr (did you mean --broker?); "));
}

TEST(ComplaintTest, AFlagBeforeItsCommandIsSentBehindIt) {
  EXPECT_THAT(Of("--max_tokens=5 say --prompt=x"), HasSubstr("unknown flag --max_tokens (it follows its command); "));
  EXPECT_THAT(Of("say --prompt=x --broker=y"), HasSubstr("unknown flag --broker (not of this command); "));
}

TEST(ComplaintTest, WhatIsMissingIsExplained) {
  EXPECT_THAT(Of("say"), HasSubstr("--prompt is required: the text; ctl say --help lists its flags"));
  EXPECT_THAT(Of("lease limit chat"), HasSubstr("bytes is required: for example 512MiB; ctl lease limit --help"));
}

TEST(ComplaintTest, WhatTheParserSaysIsKeptOtherwise) { EXPECT_THAT(Of("say --prompt"), HasSubstr("ctl: --prompt: ")); }

}  // namespace
}  // namespace swiftcache::services::ctl
