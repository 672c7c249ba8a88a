// SPDX-License-Identifier: Apache-2.0
#include "common/sync/scheduler_slice.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <thread>

namespace swiftcache {
namespace {

// struct sched_attr (man 2 sched_setattr), as words of four bytes.
struct Attributes {
  uint32_t size, policy, flags[2];
  int32_t nice;
  uint32_t priority;
  uint64_t runtime_ns, deadline_ns, period_ns;
};

Attributes OfThisThread() {
  Attributes attributes{};
  EXPECT_EQ(syscall(SYS_sched_getattr, 0, &attributes, sizeof(attributes), 0), 0);
  return attributes;
}

TEST(SlicesTest, AShortSliceIsAskedForAndInheritedAndNothingElseChanges) {
  std::thread([] {
    setpriority(PRIO_PROCESS, 0, getpriority(PRIO_PROCESS, 0) + 3);
    const Attributes before = OfThisThread();
    SetSchedulerSlice(SchedulerSlice::kShort);
    const Attributes after = OfThisThread();
    EXPECT_EQ(after.policy, static_cast<uint32_t>(SCHED_OTHER));
    EXPECT_EQ(after.nice, before.nice);
    if (before.runtime_ns == 0) GTEST_SKIP() << "this kernel knows no slices; Linux 6.12 does";
    EXPECT_EQ(after.runtime_ns, 100'000u);
    std::thread([] { EXPECT_EQ(OfThisThread().runtime_ns, 100'000u); }).join();
    SetSchedulerSlice(SchedulerSlice::kDefault);
    EXPECT_EQ(OfThisThread().runtime_ns, before.runtime_ns);
  }).join();
}

}  // namespace
}  // namespace swiftcache
