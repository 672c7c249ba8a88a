// SPDX-License-Identifier: Apache-2.0
#include "services/flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

namespace swiftcache::services {
namespace {

using ::testing::HasSubstr;

// A small set of flags, parsed from a command line.
struct Parsed {
  std::string listen = "127.0.0.1:50050", broker = "127.0.0.1:50050", model, backend = "auto";
  int64_t seqs = 64, bytes = 1 << 20;
  std::optional<int64_t> left;
  double share = 0.9;
  absl::Duration interval = absl::Milliseconds(500);
  bool prefix = true, remap = false;
  std::optional<int> exit_code;
  std::string error, output, changed;

  explicit Parsed(std::vector<const char*> args) {
    Flags flags("swiftcache-flags", "A test.");
    flags.Address("listen", &listen, "where");
    flags.Address("broker", &broker, "who", true);
    flags.Required("model", &model, "what");
    flags.Choice("backend", &backend, {"auto", "cpu"}, "how");
    flags.Integer("max_num_seqs", &seqs, 1, 4096, "how many");
    flags.Bytes("kv_cache_bytes", &bytes, 4096, int64_t{1} << 40, "how much");
    flags.Bytes("left_bytes", &left, 4096, int64_t{1} << 40, "how much, if anybody knows");
    flags.Fraction("fraction", &share, "which part");
    flags.Duration("heartbeat_interval", &interval, absl::Milliseconds(10), absl::Hours(1), "how often");
    flags.Switch("enable_prefix_caching", &prefix, "whether");
    flags.Switch("remap_on_return", &remap, "whether");
    args.insert(args.begin(), "swiftcache-flags");
    testing::internal::CaptureStderr();
    testing::internal::CaptureStdout();
    exit_code = flags.Parse(static_cast<int>(args.size()), args.data());
    changed = flags.Changed();
    error = testing::internal::GetCapturedStderr();
    output = testing::internal::GetCapturedStdout();
  }
};

// One line on standard error, exit code 2.
void ExpectOneLine(const Parsed& parsed, const std::string& part) {
  EXPECT_EQ(parsed.exit_code, 2);
  EXPECT_THAT(parsed.error, HasSubstr(part));
  EXPECT_EQ(std::count(parsed.error.begin(), parsed.error.end(), '\n'), 1) << parsed.error;
  EXPECT_EQ(parsed.error.back(), '\n');
}

TEST(FlagsTest, DefaultsStayWhereNothingIsSaid) {
  Parsed parsed({"--model", "m"});
  EXPECT_EQ(parsed.exit_code, std::nullopt) << parsed.error;
  EXPECT_EQ(parsed.listen, "127.0.0.1:50050");
  EXPECT_EQ(parsed.seqs, 64);
  EXPECT_EQ(parsed.bytes, 1 << 20);
  EXPECT_EQ(parsed.left, std::nullopt);
  EXPECT_EQ(parsed.share, 0.9);
  EXPECT_EQ(parsed.interval, absl::Milliseconds(500));
  EXPECT_TRUE(parsed.prefix);
}

TEST(FlagsTest, WhatIsNotAsByDefaultIsShownAlikeHoweverItWasSaid) {
  EXPECT_EQ(Parsed({"--model=m"}).changed, "model=m");
  EXPECT_EQ(Parsed({"--model=m", "--kv-cache-bytes=1M", "--fraction=0.90", "--left_bytes=2097152"}).changed,
            "model=m left_bytes=2MiB");
  setenv("SWIFTCACHE_LEFT_BYTES", "2048KiB", 1);
  setenv("SWIFTCACHE_FLAGS_ENABLE_PREFIX_CACHING", "off", 1);
  EXPECT_EQ(Parsed({"--model=m\n", "--heartbeat_interval=0.5s", "--broker="}).changed,
            "broker= model=m\\n left_bytes=2MiB enable_prefix_caching=false");
  unsetenv("SWIFTCACHE_LEFT_BYTES");
  unsetenv("SWIFTCACHE_FLAGS_ENABLE_PREFIX_CACHING");
}

TEST(FlagsTest, CommandLineSetsEveryKind) {
  Parsed parsed({"--model=m", "--listen=[::1]:0", "--broker=", "--backend", "cpu", "--max_num_seqs=8",
                 "--kv_cache_bytes=64MiB", "--left_bytes=1MiB", "--fraction=0.5", "--heartbeat_interval=2s",
                 "--enable_prefix_caching=false"});
  EXPECT_EQ(parsed.exit_code, std::nullopt) << parsed.error;
  EXPECT_EQ(parsed.listen, "[::1]:0");
  EXPECT_EQ(parsed.broker, "");
  EXPECT_EQ(parsed.backend, "cpu");
  EXPECT_EQ(parsed.seqs, 8);
  EXPECT_EQ(parsed.bytes, 64 << 20);
  EXPECT_EQ(parsed.left, 1 << 20);
  EXPECT_EQ(parsed.share, 0.5);
  EXPECT_EQ(parsed.interval, absl::Seconds(2));
  EXPECT_FALSE(parsed.prefix);
}

TEST(FlagsTest, SwitchNeedsNoValue) {
  Parsed parsed({"--enable_prefix_caching", "--model=m", "--remap_on_return"});
  EXPECT_EQ(parsed.exit_code, std::nullopt) << parsed.error;
  EXPECT_TRUE(parsed.prefix && parsed.remap) << "whatever their defaults";
}

TEST(FlagsTest, EnvironmentSpeaksWhereTheCommandLineDoesNot) {
  setenv("SWIFTCACHE_MAX_NUM_SEQS", "3", 1);
  setenv("SWIFTCACHE_ENABLE_PREFIX_CACHING", "false", 1);
  Parsed parsed({"--model=m"});
  Parsed overruled({"--model=m", "--max_num_seqs=5"});
  setenv("SWIFTCACHE_MAX_NUM_SEQS", "many", 1);
  Parsed wrong({"--model=m"}), typed_wrong({"--model=m", "--max_num_seqs=few"});
  unsetenv("SWIFTCACHE_MAX_NUM_SEQS");
  unsetenv("SWIFTCACHE_ENABLE_PREFIX_CACHING");
  EXPECT_EQ(parsed.seqs, 3);
  EXPECT_FALSE(parsed.prefix);
  EXPECT_EQ(overruled.seqs, 5);
  ExpectOneLine(wrong, "the environment variable SWIFTCACHE_MAX_NUM_SEQS: found 'many', wanted a whole number");
  ExpectOneLine(typed_wrong, "--max_num_seqs: found 'few', wanted a whole number");
}

TEST(FlagsTest, WrongValuesAreOneLineThatNamesFlagFoundAndWanted) {
  ExpectOneLine(Parsed({"--model=m", "--max_num_seqs=0"}), "--max_num_seqs: found 0, wanted 1 to 4096");
  ExpectOneLine(Parsed({"--model=m", "--kv_cache_bytes=1KiB"}), "--kv_cache_bytes: found 1KiB, wanted 4KiB to 1024GiB");
  ExpectOneLine(Parsed({"--model=m", "--left_bytes=1KiB"}), "--left_bytes: found 1KiB, wanted 4KiB to 1024GiB");
  ExpectOneLine(Parsed({"--model=m", "--fraction=1.5"}), "--fraction: found '1.5', wanted a number above 0, at most 1");
  ExpectOneLine(Parsed({"--model=m", "--heartbeat_interval=1ms"}),
                "--heartbeat_interval: found 1ms, wanted 10ms to 1h");
  ExpectOneLine(Parsed({"--model=m", "--backend=tpu"}), "--backend: found 'tpu', wanted one of auto|cpu");
  ExpectOneLine(Parsed({"--model=m", "--listen=nowhere"}), "--listen: address 'nowhere'");
  ExpectOneLine(Parsed({"--model=m", "--listen="}), "--listen: address ''");
  ExpectOneLine(Parsed({"--model=m", "--backend=a\nb"}), "found 'a\\nb'");
}

TEST(FlagsTest, UnknownFlagsAndMissingOnesAreOneLine) {
  ExpectOneLine(Parsed({"--model=m", "--no_such_flag=1"}), "unknown flag or argument: --no_such_flag=1");
  ExpectOneLine(Parsed({"--model=m", "stray\nword"}), "unknown flag or argument: stray\\nword");
  ExpectOneLine(Parsed({}), "--model");
  ExpectOneLine(Parsed({"model.gguf"}), "--model is required (did you mean --model=model.gguf?)");
  ExpectOneLine(Parsed({"--max_num_seqs=3"}), "--model is required: what;");
  ExpectOneLine(Parsed({"--modle=m"}), "unknown flag or argument: --modle=m (did you mean --model?);");
  ExpectOneLine(Parsed({"--model=m", "--max_num_sek", "8"}),
                "unknown flag or argument: --max_num_sek 8 (did you mean --max_num_seqs?);");
  ExpectOneLine(Parsed({"--model"}), "--model");
}

TEST(FlagsTest, DashesInFlagsAreUnderscoresAndInValuesStay) {
  EXPECT_EQ(Parsed({"--model=m", "--max-num-seqs=3"}).seqs, 3);
  EXPECT_EQ(Parsed({"--model=m", "--max-num-seqs", "3"}).seqs, 3);
  EXPECT_EQ(Parsed({"--model=a-b"}).model, "a-b");
  EXPECT_EQ(Parsed({"--model", "a-b"}).model, "a-b");
  ExpectOneLine(Parsed({"--model=m", "--no-such-flag"}), "unknown flag or argument: --no_such_flag");
}

// One environment for several servers, as a compose file or a unit may have it.
TEST(FlagsTest, AProgramsOwnVariableThatIsNoFlagIsAMistake) {
  setenv("SWIFTCACHE_FLAGS_MAX_NUM_SEKS", "3", 1);
  ExpectOneLine(Parsed({"--model=m"}),
                "the environment variable SWIFTCACHE_FLAGS_MAX_NUM_SEKS is none of its flags (did you mean "
                "SWIFTCACHE_FLAGS_MAX_NUM_SEQS?); swiftcache-flags --help lists them");
  unsetenv("SWIFTCACHE_FLAGS_MAX_NUM_SEKS");
}

TEST(FlagsTest, WhatKubernetesTellsOfAServiceOfThatNameIsNoMistake) {
  const std::vector<std::pair<const char*, const char*>> variables = {
      {"SWIFTCACHE_FLAGS_SERVICE_HOST", "10.0.0.1"},     {"SWIFTCACHE_FLAGS_SERVICE_PORT_HTTP", "80"},
      {"SWIFTCACHE_FLAGS_PORT", "tcp://10.0.0.1:80"},    {"SWIFTCACHE_FLAGS_PORT_80_TCP", "tcp://10.0.0.1:80"},
      {"SWIFTCACHE_FLAGS_PORT_80_TCP_ADDR", "10.0.0.1"}, {"SWIFTCACHE_FLAGS_CHAT_PORT", "udp://10.0.0.1:80"}};
  for (const auto& [name, value] : variables) setenv(name, value, 1);
  const Parsed parsed({"--model=m"});
  for (const auto& [name, value] : variables) unsetenv(name);
  EXPECT_EQ(parsed.exit_code, std::nullopt);
  EXPECT_EQ(parsed.error, "");
  setenv("SWIFTCACHE_FLAGS_PORT", "80", 1);
  ExpectOneLine(Parsed({"--model=m"}), "the environment variable SWIFTCACHE_FLAGS_PORT is none of its flags");
  unsetenv("SWIFTCACHE_FLAGS_PORT");
}

TEST(FlagsTest, ACommonVariableThatIsNearlyAFlagIsToldOf) {
  setenv("SWIFTCACHE_MAX_NUM_SEKS", "3", 1);
  const Parsed told({"--model=m"});
  unsetenv("SWIFTCACHE_MAX_NUM_SEKS");
  EXPECT_EQ(told.exit_code, std::nullopt);
  EXPECT_EQ(told.seqs, 64);
  EXPECT_EQ(told.error,
            "swiftcache-flags: the environment variable SWIFTCACHE_MAX_NUM_SEKS is none of its flags (did you mean "
            "SWIFTCACHE_MAX_NUM_SEQS?); it says nothing here\n");
  setenv("SWIFTCACHE_DRAIN_TIMEOUT", "3s", 1);
  setenv("SWIFTCACHE_MAX_NUM", "3", 1);
  const Parsed other({"--model=m"});
  unsetenv("SWIFTCACHE_DRAIN_TIMEOUT");
  unsetenv("SWIFTCACHE_MAX_NUM");
  EXPECT_EQ(other.exit_code, std::nullopt);
  EXPECT_EQ(other.error, "") << "they may be another program's";
}

TEST(FlagsTest, AProgramsOwnVariableWinsOverTheCommonOneAndTheCommandLineOverBoth) {
  setenv("SWIFTCACHE_MAX_NUM_SEQS", "3", 1);
  setenv("SWIFTCACHE_FLAGS_MAX_NUM_SEQS", "", 1);
  EXPECT_EQ(Parsed({"--model=m"}).seqs, 3) << "an empty variable says nothing";
  setenv("SWIFTCACHE_FLAGS_MAX_NUM_SEQS", "4", 1);
  EXPECT_EQ(Parsed({"--model=m"}).seqs, 4);
  EXPECT_EQ(Parsed({"--model=m", "--max_num_seqs=5"}).seqs, 5);
  setenv("SWIFTCACHE_MAX_NUM_SEQS", "", 1);
  unsetenv("SWIFTCACHE_FLAGS_MAX_NUM_SEQS");
  EXPECT_EQ(Parsed({"--model=m"}).seqs, 64);
  unsetenv("SWIFTCACHE_MAX_NUM_SEQS");
}

TEST(FlagsTest, VersionAndHelpEndWithZero) {
  Parsed version({"--version"});
  EXPECT_EQ(version.exit_code, 0);
  EXPECT_THAT(version.output, HasSubstr("swiftcache-flags "));
  Parsed help({"--help"});
  EXPECT_EQ(help.exit_code, 0);
  EXPECT_THAT(help.output, HasSubstr("SWIFTCACHE_KV_CACHE_BYTES"));
  EXPECT_THAT(help.output, HasSubstr("1MiB"));
}

}  // namespace
}  // namespace swiftcache::services
