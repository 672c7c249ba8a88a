// SPDX-License-Identifier: Apache-2.0
#include "engine/memory/start_turn.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/fakes/log_lines.h"
#include "tests/fakes/temp_folder.h"

namespace swiftcache::engine::memory {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

bool Never() { return false; }

class StartTurnTest : public ::testing::Test {
 protected:
  StartTurn::Options For(const std::string& holder, const std::string& device = "gpu-1") {
    return {.folder = folder_ + "/made", .device_id = device, .holder = holder};
  }
  std::string path() const { return folder_ + "/made/start-gpu-1"; }

  const TempFolder temp_folder_;
  const std::string folder_ = temp_folder_.path();
};

TEST_F(StartTurnTest, TheSecondWaitsUntilTheFirstHasWhatItWantsAndSaysForWhom) {
  fakes::LogLines log;
  auto first = StartTurn::Take(For("engine chat"), Never);
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_THAT(log.lines(), IsEmpty());
  std::atomic<bool> has_turn = false;
  std::thread second([&] {
    const auto turn = StartTurn::Take(For("engine code"), Never);
    EXPECT_TRUE(turn.ok()) << turn.status();
    has_turn = true;
  });
  while (log.lines().empty() && !has_turn) absl::SleepFor(absl::Milliseconds(1));
  EXPECT_FALSE(has_turn);
  EXPECT_THAT(log.lines(), Contains(AllOf(HasSubstr("engine code waits for engine chat"), HasSubstr(path()))));
  first = StartTurn();
  second.join();
  EXPECT_TRUE(has_turn);
  EXPECT_EQ(log.lines().size(), 2u) << "one line for the wait, one for its end";
}

TEST_F(StartTurnTest, WhoIsAloneOnItsDeviceWaitsForNobody) {
  fakes::LogLines log;
  const auto first = StartTurn::Take(For("a", "gpu-1"), Never);
  const auto second = StartTurn::Take(For("b", "gpu-2"), Never);
  EXPECT_TRUE(first.ok() && second.ok());
  EXPECT_THAT(log.lines(), IsEmpty());
}

TEST_F(StartTurnTest, WhereNobodyElseTakesTheDevicesMemoryThereIsNoFile) {
  const auto first = StartTurn::Take(For("a", ""), Never);
  const auto second = StartTurn::Take(For("b", ""), Never);
  EXPECT_TRUE(first.ok() && second.ok());
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/made"));
}

TEST_F(StartTurnTest, AKilledHolderLetsTheNextOneIn) {
  const pid_t holder = fork();
  ASSERT_GE(holder, 0);
  if (holder == 0) {
    const auto turn = StartTurn::Take(For("engine killed"), Never);
    std::ofstream(folder_ + "/held") << turn.ok();
    for (;;) pause();
  }
  while (!std::filesystem::exists(folder_ + "/held")) absl::SleepFor(absl::Milliseconds(1));
  int looks = 0;
  const auto turn = StartTurn::Take(For("engine next"), [&] {
    if (++looks == 2) kill(holder, SIGKILL);
    return looks > 1000;
  });
  EXPECT_TRUE(turn.ok()) << turn.status();
  EXPECT_GE(looks, 2) << "it did not wait at all";
  kill(holder, SIGKILL);
  waitpid(holder, nullptr, 0);
}

TEST_F(StartTurnTest, WhoIsNoLongerWantedWaitsNoLonger) {
  const auto first = StartTurn::Take(For("a"), Never);
  int looks = 0;
  const absl::Status status = StartTurn::Take(For("b"), [&] { return ++looks == 3; }).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kCancelled);
}

TEST_F(StartTurnTest, AHolderThatCallsItselfManyThingsIsShownInPartOnOneLine) {
  fakes::LogLines log;
  const auto first = StartTurn::Take(For(absl::StrCat("a\nb", std::string(1000, 'c'))), Never);
  ASSERT_TRUE(first.ok()) << first.status();
  int looks = 0;
  EXPECT_FALSE(StartTurn::Take(For("b"), [&] { return ++looks == 4; }).ok());
  ASSERT_EQ(log.lines().size(), 1u);
  EXPECT_THAT(log.lines()[0], AllOf(HasSubstr("a\\nbccc"), Not(HasSubstr("\n"))));
  EXPECT_LT(log.lines()[0].size(), 500u);
}

TEST_F(StartTurnTest, AFileThatIsNoneIsNamed) {
  std::filesystem::create_directory(folder_ + "/made");
  std::filesystem::create_symlink(folder_ + "/elsewhere", path());
  const absl::Status link = StartTurn::Take(For("a"), Never).status();
  EXPECT_EQ(link.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(link.message()), HasSubstr(path()));
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/elsewhere"));
  StartTurn::Options nowhere = For("a");
  nowhere.folder = folder_ + "/not/there";
  EXPECT_EQ(StartTurn::Take(nowhere, Never).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace swiftcache::engine::memory
