// SPDX-License-Identifier: Apache-2.0
#include "common/sync/urgent_thread.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

namespace swiftcache {
namespace {

constexpr uid_t kNobody = 65534;

int Niceness() { return getpriority(PRIO_PROCESS, 0); }

TEST(UrgentThreadTest, AThreadIsUrgentAndTheOthersAreNot) {
  const int before = Niceness();
  std::thread([before] {
    if (!SetUrgent()) GTEST_SKIP() << "the system allows no niceness of " << before + kUrgentNiceness;
    EXPECT_EQ(Niceness(), before + kUrgentNiceness);
  }).join();
  EXPECT_EQ(Niceness(), before);
}

TEST(UrgentThreadTest, WhereItIsNotAllowedAThreadStaysAsItWas) {
  const pid_t child = fork();
  if (child == 0) {
    const rlimit none{.rlim_cur = 0, .rlim_max = 0};
    const bool bare = setrlimit(RLIMIT_NICE, &none) == 0 && (geteuid() != 0 || setuid(kNobody) == 0);
    const int before = Niceness();
    _exit(bare && !SetUrgent() && Niceness() == before ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace swiftcache
