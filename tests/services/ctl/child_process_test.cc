// SPDX-License-Identifier: Apache-2.0
// Shells stand for servers.
#include "services/ctl/child_process.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "tests/fakes/temp_folder.h"

namespace swiftcache::services::ctl {
namespace {

constexpr char kListening[] = "echo listening grpc=127.0.0.1:1234 http=127.0.0.1:5678; ";

class ChildProcessTest : public ::testing::Test {
 protected:
  std::unique_ptr<ChildProcess> Run(const std::string& script) {
    auto child = ChildProcess::Start("chat", "/bin/sh", {"-c", script}, folder_);
    EXPECT_TRUE(child.ok()) << child.status();
    return *std::move(child);
  }
  // Its status when it has ended, or OK as soon as it listens.
  static absl::Status Await(ChildProcess& child) {
    for (const absl::Time deadline = absl::Now() + absl::Seconds(30); absl::Now() < deadline;) {
      const absl::Status status = child.Check();
      if (!status.ok() || child.listens()) return status;
      std::vector<pollfd> events = child.Events();
      poll(events.data(), events.size(), 1000);
    }
    return absl::DeadlineExceededError("neither listens nor ends");
  }
  std::string Log() const {
    std::ifstream file(folder_ + "/chat.log");
    return {std::istreambuf_iterator<char>(file), {}};
  }

  const TempFolder temp_folder_;
  const std::string folder_ = temp_folder_.path();
};

TEST_F(ChildProcessTest, ItsAddressesAreReadFromWhatItPrints) {
  const auto child = Run(std::string("echo hello; ") + kListening + "echo log >&2; exec sleep 60");
  EXPECT_FALSE(child->listens());
  ASSERT_EQ(Await(*child), absl::OkStatus());
  EXPECT_EQ(child->grpc_address(), "127.0.0.1:1234");
  EXPECT_EQ(child->http_address(), "127.0.0.1:5678");
}

TEST_F(ChildProcessTest, AnEndIsToldWithTheLastLineOfTheLog) {
  const auto child = Run("echo first >&2; printf 'no such \\033[2J file\\n' >&2; exit 2");
  const absl::Status status = Await(*child);
  EXPECT_TRUE(absl::IsAborted(status));
  EXPECT_EQ(status.message(), "chat ended with exit code 2; its log ends: no such ?[2J file");
  EXPECT_EQ(child->Check(), status);
}

TEST_F(ChildProcessTest, ASignalIsNamed) {
  EXPECT_EQ(Await(*Run("kill -9 $$")).message(), "chat ended by signal 9; its log ends: (it is empty)");
}

TEST_F(ChildProcessTest, WhatCannotBeRunSaysSo) {
  auto child = ChildProcess::Start("chat", "/nowhere/server", {}, folder_);
  ASSERT_TRUE(child.ok()) << child.status();
  EXPECT_THAT(std::string(Await(**child).message()),
              testing::HasSubstr("/nowhere/server cannot be started: No such file or directory"));
  EXPECT_TRUE(absl::IsNotFound(ChildProcess::Start("chat", "/bin/sh", {}, "/nowhere").status()));
}

TEST_F(ChildProcessTest, TerminateLetsItEndByItself) {
  const auto child = Run(std::string("trap 'echo ended >&2; kill $!; exit 0' TERM; sleep 60 & ") + kListening + "wait");
  ASSERT_EQ(Await(*child), absl::OkStatus());
  EXPECT_FALSE(child->WaitEnd(absl::ZeroDuration()));
  child->Terminate();
  EXPECT_TRUE(child->WaitEnd(absl::Seconds(30)));
  EXPECT_EQ(Log(), "ended\n");
}

TEST_F(ChildProcessTest, WhatDoesNotEndIsKilled) {
  const auto child = Run(std::string("trap '' TERM; ") + kListening + "exec sleep 60");
  ASSERT_EQ(Await(*child), absl::OkStatus());
  child->Terminate();
  EXPECT_FALSE(child->WaitEnd(absl::Milliseconds(1)));
  child->Kill();
  EXPECT_TRUE(child->WaitEnd(absl::ZeroDuration()));
  EXPECT_THAT(std::string(child->Check().message()), testing::StartsWith("chat ended by signal 9"));
}

TEST_F(ChildProcessTest, ItReadsNothingOfThisProcessesInput) {
  EXPECT_THAT(std::string(Await(*Run("cat; echo end of input >&2; exit 3")).message()),
              testing::HasSubstr("exit code 3; its log ends: end of input"));
}

}  // namespace
}  // namespace swiftcache::services::ctl
