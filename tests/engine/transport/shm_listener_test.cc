// SPDX-License-Identifier: Apache-2.0
#include "engine/transport/shm_listener.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "absl/time/clock.h"
#include "engine/transport/shm_address.h"
#include "tests/engine/transport/transport_harness.h"

namespace swiftcache::engine::transport {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string Message(const absl::Status& status) { return std::string(status.message()); }

TEST(ShmAddressTest, TheDefaultFolderIsTheUsersOwn) {
  EXPECT_EQ(DefaultShmDir(), "/tmp/swiftcache-" + std::to_string(geteuid()));
}

TEST(ShmAddressTest, NamesOfEnginesBecomeNamesOfFiles) {
  EXPECT_EQ(ShmSocketPath("/d", "a/b%-2"), "/d/a%2Fb%25-2.sock");
  EXPECT_EQ(ShmAddress(std::string(108, 'x')).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(ShmAddress(std::string(107, 'x')).ok());
}

TEST(ShmAddressTest, APeersSocketLiesBesideTheOwnWhateverThePeerCallsTheFolder) {
  EXPECT_EQ(ShmPeerPath("/run/shared/chat.sock", "run/code.sock"), "/run/shared/code.sock");
  EXPECT_EQ(ShmPeerPath("run/chat.sock", "/run/shared/a%2Fb.sock"), "run/a%2Fb.sock");
  EXPECT_EQ(ShmPeerPath("./chat.sock", "code.sock"), "./code.sock");
}

TEST(ShmListenerTest, ALivingEnginesSocketIsNotTaken) {
  ShmFolder folder;
  auto first = ShmListener::Create(folder.path(), "chat");
  ASSERT_TRUE(first.ok()) << first.status();
  const absl::Status second = ShmListener::Create(folder.path(), "chat").status();
  EXPECT_EQ(second.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(Message(second), AllOf(HasSubstr("--name"), HasSubstr("--shm_dir"), HasSubstr(first->path())));
  EXPECT_TRUE(ShmListener::Create(folder.path(), "chat-2").ok());
}

TEST(ShmListenerTest, ManyBorrowersMayComeBeforeOneIsMet) {
  ShmFolder folder;
  const auto listener = ShmListener::Create(folder.path(), "chat");
  ASSERT_TRUE(listener.ok()) << listener.status();
  std::vector<std::shared_ptr<ShmSocket>> borrowers;
  for (int i = 0; i < 400; ++i) {
    auto borrower = ShmSocket::Connect(listener->path());
    ASSERT_TRUE(borrower.ok()) << i << ": " << borrower.status();
    borrowers.push_back(*std::move(borrower));
  }
}

TEST(ShmListenerTest, TheNameOfAnEngineThatEndsIsWaitedFor) {
  ShmFolder folder;
  auto first = ShmListener::Create(folder.path(), "chat");
  ASSERT_TRUE(first.ok()) << first.status();
  std::thread end([&] {
    absl::SleepFor(absl::Milliseconds(100));
    first->Close();
  });
  const auto second = ShmListener::Create(folder.path(), "chat");
  end.join();
  ASSERT_TRUE(second.ok()) << second.status();
  first->Close();
  EXPECT_TRUE(std::filesystem::exists(second->path())) << "it is another's now";
}

TEST(ShmListenerTest, ADeadEnginesSocketIsReplaced) {
  ShmFolder folder;
  const std::string path = ShmSocketPath(folder.path(), "chat");
  {
    const memory::UniqueFd dead(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    const sockaddr_un address = ShmAddress(path).value();
    ASSERT_EQ(bind(dead.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  }
  ASSERT_TRUE(std::filesystem::is_socket(path));
  const auto listener = ShmListener::Create(folder.path(), "chat");
  ASSERT_TRUE(listener.ok()) << listener.status();
  EXPECT_TRUE(ShmSocket::Connect(path).ok());
}

// A child of another user, which root alone can make: what Connect said to it, and whether its connection was ended.
struct OtherUser {
  bool refused = false, hung_up = false;
};
OtherUser ConnectAsAnotherUser(const std::string& path) {
  int results[2];
  EXPECT_EQ(pipe(results), 0);
  const pid_t child = fork();
  if (child == 0) {
    OtherUser seen;
    const sockaddr_un address = ShmAddress(path).value();
    if (setgid(65534) == 0 && setuid(65534) == 0) {
      seen.refused = ShmSocket::Connect(path).status().code() == absl::StatusCode::kPermissionDenied;
      const int fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);
      if (connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) {
        char byte = 0;
        seen.hung_up = recv(fd, &byte, 1, 0) <= 0;
      }
    }
    const bool written = write(results[1], &seen, sizeof seen) == sizeof seen;
    _exit(written ? 0 : 1);
  }
  close(results[1]);
  OtherUser seen;
  EXPECT_EQ(read(results[0], &seen, sizeof seen), static_cast<ssize_t>(sizeof seen));
  close(results[0]);
  EXPECT_EQ(waitpid(child, nullptr, 0), child);
  return seen;
}

TEST(ShmListenerTest, AnotherUsersProcessIsHungUpOnAndDoesNotBelieveUs) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can be another user";
  ShmFolder folder;
  std::filesystem::permissions(folder.path(), std::filesystem::perms::all);
  auto listener = ShmListener::Create(folder.path(), "chat");
  ASSERT_TRUE(listener.ok()) << listener.status();
  std::filesystem::permissions(listener->path(), std::filesystem::perms::all);
  int strangers = 0;
  std::thread accepting([&] {
    const absl::Time end = absl::Now() + absl::Seconds(30);
    std::shared_ptr<ShmSocket> socket;
    while (strangers < 2 && absl::Now() < end) {
      const ShmListener::Got got = listener->Accept(socket);
      EXPECT_NE(got, ShmListener::Got::kSocket);
      if (got == ShmListener::Got::kStranger) ++strangers;
      if (got == ShmListener::Got::kNothing) absl::SleepFor(absl::Milliseconds(1));
    }
  });
  const OtherUser seen = ConnectAsAnotherUser(listener->path());
  accepting.join();
  EXPECT_TRUE(seen.refused);
  EXPECT_TRUE(seen.hung_up);
  EXPECT_EQ(strangers, 2);
  const auto own = ShmSocket::Connect(listener->path());
  ASSERT_TRUE(own.ok()) << own.status();
  std::shared_ptr<ShmSocket> socket;
  EXPECT_EQ(listener->Accept(socket), ShmListener::Got::kSocket);
}

TEST(ShmListenerTest, AtTheEndOnlyItsOwnSocketIsRemoved) {
  ShmFolder folder;
  const std::string path = ShmSocketPath(folder.path(), "chat");
  { ASSERT_TRUE(ShmListener::Create(folder.path(), "chat").ok()); }
  EXPECT_FALSE(std::filesystem::exists(path));
  auto first = std::make_unique<ShmListener>(ShmListener::Create(folder.path(), "chat").value());
  std::filesystem::rename(path, path + ".moved");  // so that the new one is another file
  auto second = ShmListener::Create(folder.path(), "chat");
  ASSERT_TRUE(second.ok()) << second.status();
  first.reset();
  EXPECT_TRUE(std::filesystem::exists(path));
}

TEST(ShmListenerTest, AFolderIsMadeForThisUserOnly) {
  ShmFolder folder;
  const std::string made = folder.path() + "/made";
  ASSERT_TRUE(ShmListener::Create(made, "chat").ok());
  struct stat file = {};
  ASSERT_EQ(stat(made.c_str(), &file), 0);
  EXPECT_EQ(file.st_mode & 0777, 0700);
}

TEST(ShmListenerTest, WhatIsNoFolderOrNoSocketIsNamed) {
  ShmFolder folder;
  const std::string file = folder.path() + "/file.sock";
  std::ofstream(file) << "x";
  const absl::Status no_folder = ShmListener::Create(file, "chat").status();
  EXPECT_EQ(no_folder.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(Message(no_folder), AllOf(HasSubstr("--shm_dir"), HasSubstr(file)));
  const absl::Status no_socket = ShmListener::Create(folder.path(), "file").status();
  EXPECT_EQ(no_socket.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(std::filesystem::exists(file));
  const absl::Status long_name = ShmListener::Create(folder.path(), std::string(110, 'n')).status();
  EXPECT_EQ(long_name.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(Message(long_name), HasSubstr("--shm_dir"));
}

TEST(ShmListenerTest, AnotherUsersFolderIsRefused) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can give a folder away";
  ShmFolder folder;
  ASSERT_EQ(chown(folder.path().c_str(), 12345, 12345), 0);
  const absl::Status status = ShmListener::Create(folder.path(), "chat").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_THAT(Message(status), HasSubstr("12345"));
}

}  // namespace
}  // namespace swiftcache::engine::transport
