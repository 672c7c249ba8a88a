// SPDX-License-Identifier: Apache-2.0
#include "engine/backend/cpu/core_share.h"

#include <gtest/gtest.h>
#include <linux/magic.h>
#include <sched.h>
#include <sys/statfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <barrier>
#include <bit>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "engine/backend/cpu/thread_pool.h"
#include "tests/fakes/fake_clock.h"
#include "tests/fakes/temp_folder.h"

namespace swiftcache::engine::backend::cpu {
namespace {

class CoreShareTest : public ::testing::Test {
 protected:
  std::unique_ptr<CoreShare> Join(int in_set, int usable = 1 << 20, const std::string& set = "f",
                                  uint64_t quota_group = 0) {
    auto share =
        CoreShare::Join(folder_, {.set = set, .in_set = in_set, .usable = usable, .quota_group = quota_group}, clock_);
    EXPECT_TRUE(share.ok()) << share.status();
    return std::move(share).value();
  }

  const TempFolder temp_folder_{"/dev/shm"};
  const std::string folder_ = temp_folder_.path();
  FakeClock clock_;
};

TEST_F(CoreShareTest, WhoComputesAloneHasAllCoresAndThoseThatComputeTogetherDivideThem) {
  const auto a = Join(7), b = Join(7), c = Join(7);
  a->Enter();
  EXPECT_EQ(a->Threads(), 7);
  b->Enter();
  EXPECT_EQ(a->Threads(), 4);
  EXPECT_EQ(b->Threads(), 3);
  c->Enter();
  EXPECT_EQ(a->Threads(), 3);
  EXPECT_EQ(b->Threads(), 2);
  EXPECT_EQ(c->Threads(), 2);
  a->Leave();
  EXPECT_EQ(b->Threads(), 4);
  EXPECT_EQ(c->Threads(), 3);
  b->Leave();
  b->Leave();
  EXPECT_EQ(c->Threads(), 7);
}

TEST_F(CoreShareTest, EachHasAThreadHoweverManyTheyAre) {
  std::vector<std::unique_ptr<CoreShare>> all;
  for (int i = 0; i < CoreShare::kMaxEngines; ++i) {
    all.push_back(Join(2));
    all.back()->Enter();
  }
  for (const auto& share : all) EXPECT_EQ(share->Threads(), 1);
  const auto refused = CoreShare::Join(folder_, {.set = "f", .in_set = 2, .usable = 2}, clock_);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted);
  all.pop_back();
  EXPECT_EQ(Join(2)->Threads(), 1);  // its place is free again
}

TEST_F(CoreShareTest, AQuotaIsKeptAndOtherCoresAreOthers) {
  const auto a = Join(8, 3), b = Join(8), elsewhere = Join(8, 8, "f0");
  a->Enter();
  elsewhere->Enter();
  EXPECT_EQ(a->Threads(), 3);
  EXPECT_EQ(elsewhere->Threads(), 8);
  b->Enter();
  EXPECT_EQ(a->Threads(), 3);
  EXPECT_EQ(b->Threads(), 4);
}

TEST_F(CoreShareTest, EnginesOfOneQuotaDivideItToo) {
  const auto a = Join(8, 3, "f", 7), other = Join(8, 4, "f", 9), b = Join(8, 3, "f", 7);
  a->Enter();
  EXPECT_EQ(a->Threads(), 3);
  other->Enter();
  EXPECT_EQ(a->Threads(), 3) << "another quota, and cores for both";
  EXPECT_EQ(other->Threads(), 4);
  b->Enter();
  EXPECT_EQ(a->Threads(), 2);
  EXPECT_EQ(b->Threads(), 1);
  EXPECT_EQ(other->Threads(), 3) << "a third of the cores";
}

TEST_F(CoreShareTest, WhoIsKilledWhileItComputesIsLeftOutAfterAWhile) {
  const pid_t child = fork();
  if (child == 0) {
    Join(4).release()->Enter();  // NOLINT: it is killed
    _exit(0);
  }
  waitpid(child, nullptr, 0);
  const auto first = Join(4);  // at the place of the one that was killed
  first->Enter();
  EXPECT_EQ(first->Threads(), 4);

  const auto second = Join(4);
  first->Leave();
  const pid_t again = fork();
  if (again == 0) {
    Join(4).release()->Enter();
    _exit(0);
  }
  waitpid(again, nullptr, 0);
  second->Enter();
  EXPECT_EQ(second->Threads(), 2);
  clock_.Advance(CoreShare::kStale);
  second->Enter();
  EXPECT_EQ(second->Threads(), 2);
  clock_.Advance(absl::Milliseconds(1));
  second->Enter();
  EXPECT_EQ(second->Threads(), 4);
}

TEST_F(CoreShareTest, WhoComputesOnInALongStepStays) {
  const auto a = Join(4), b = Join(4);
  b->Enter();
  for (int step = 0; step < 5; ++step) {
    a->Enter();
    EXPECT_EQ(a->Threads(), 2);
    clock_.Advance(CoreShare::kStale - absl::Milliseconds(1));
    b->Threads();
  }
}

TEST_F(CoreShareTest, WhoEndsLastRemovesTheFileAndTheFolderIfToldTo) {
  const AllowedCores cores{.set = "f", .in_set = 4, .usable = 4};
  const std::string folder = folder_ + "/made", file = folder + "/cores-f";
  auto first = CoreShare::Join(folder, cores, clock_, true), second = CoreShare::Join(folder, cores, clock_, true);
  ASSERT_TRUE(first.ok() && second.ok());
  first->reset();
  EXPECT_TRUE(std::filesystem::exists(file)) << "the other is there";
  second->reset();
  EXPECT_FALSE(std::filesystem::exists(folder));
  CoreShare::Join(folder, cores, clock_).IgnoreError();
  EXPECT_FALSE(std::filesystem::exists(file));
  EXPECT_TRUE(std::filesystem::exists(folder)) << "it was not told to";
}

// Engines come and go at once: whoever stays shares with who joins later, whatever was removed meanwhile.
TEST_F(CoreShareTest, WhoJoinsWhileTheLastLeavesIsNotAlone) {
  const AllowedCores cores{.set = "f", .in_set = 8, .usable = 8};
  const auto come_and_go = [&] {
    for (int i = 0; i < 300; ++i) {
      const auto share = CoreShare::Join(folder_ + "/made", cores, clock_, true);
      ASSERT_TRUE(share.ok()) << share.status();
    }
  };
  for (int turn = 0; turn < 20; ++turn) {
    std::thread others[3];
    for (std::thread& other : others) other = std::thread(come_and_go);
    const auto stays = CoreShare::Join(folder_ + "/made", cores, clock_, true);
    for (std::thread& other : others) other.join();
    ASSERT_TRUE(stays.ok()) << stays.status();
    const auto late = CoreShare::Join(folder_ + "/made", cores, clock_, true);
    ASSERT_TRUE(late.ok()) << late.status();
    (*stays)->Enter();
    (*late)->Enter();
    EXPECT_EQ((*stays)->Threads(), 4);
    EXPECT_EQ((*late)->Threads(), 4);
  }
}

TEST_F(CoreShareTest, OfSeveralThatEndAtOnceOneRemovesTheFolder) {
  const AllowedCores cores{.set = "f", .in_set = 8, .usable = 8};
  for (int turn = 0; turn < 1000; ++turn) {
    std::vector<std::unique_ptr<CoreShare>> shares;
    for (int i = 0; i < 3; ++i) shares.push_back(*CoreShare::Join(folder_ + "/made", cores, clock_, true));
    std::barrier all_there(3);
    std::vector<std::thread> ends;
    for (auto& share : shares) {
      ends.emplace_back([&] {
        all_there.arrive_and_wait();
        share.reset();
      });
    }
    for (std::thread& end : ends) end.join();
    ASSERT_FALSE(std::filesystem::exists(folder_ + "/made")) << "turn " << turn;
  }
}

TEST_F(CoreShareTest, AFileOfOthersOrNoFolderIsAnError) {
  std::ofstream(folder_ + "/file") << "x";
  EXPECT_EQ(CoreShare::Join(folder_ + "/file", {.set = "f"}, clock_).status().code(),
            absl::StatusCode::kInvalidArgument);
  std::filesystem::create_symlink(folder_ + "/file", folder_ + "/cores-f");
  EXPECT_EQ(CoreShare::Join(folder_, {.set = "f"}, clock_).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(CoreShareTest, AFolderOnADiskIsNotUsed) {
  const std::string folder = std::filesystem::current_path() / "cores-on-a-disk";
  struct statfs system = {};
  if (statfs(".", &system) == 0 && system.f_type == TMPFS_MAGIC) GTEST_SKIP() << "this folder is in memory";
  const absl::Status status = CoreShare::Join(folder, {.set = "f"}, clock_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_TRUE(std::filesystem::is_empty(folder));
  std::filesystem::remove_all(folder);
}

// Each item holds its thread until as many are there as may take part: so each of these does, and none is late for a loop
// and joins the next one, which may have no room for it.
TEST_F(CoreShareTest, APoolComputesWithAsManyThreadsAsItMay) {
  const auto own = Join(3), other = Join(3);
  ThreadPool pool(3, own.get());
  const auto workers = [&](int64_t items, int threads) {
    const absl::Time end = absl::Now() + absl::Seconds(30);
    std::atomic<uint32_t> seen = 0;
    std::atomic<int64_t> count = 0;
    pool.ParallelFor(items, [&](int64_t item, int worker) {
      ++count;
      seen |= 1u << worker;
      while (std::popcount(seen.load()) < threads && absl::Now() < end) std::this_thread::yield();
    });
    EXPECT_EQ(count, items);
    return seen.load();
  };
  own->Enter();
  for (int round = 0; round < 2000; ++round) {
    const bool alone = round % 3 == 0;
    if (alone) {
      other->Leave();
    } else {
      other->Enter();
    }
    const int threads = alone ? 3 : 2;
    ASSERT_EQ(workers(threads + round % 50, threads), (1u << threads) - 1) << "round " << round;
  }
  own->Leave();
}

TEST_F(CoreShareTest, OneThreadIsTheCallers) {
  const auto own = Join(2), other = Join(2);
  ThreadPool pool(2, own.get());
  own->Enter();
  other->Enter();
  for (int round = 0; round < 100; ++round) {
    pool.ParallelFor(64, [](int64_t item, int worker) { EXPECT_EQ(worker, 0); });
  }
  other->Leave();
  std::set<int> seen;
  std::mutex mutex;
  const absl::Time end = absl::Now() + absl::Seconds(10);
  while (seen.size() < 2 && absl::Now() < end) {
    pool.ParallelFor(64, [&](int64_t item, int worker) {
      std::lock_guard lock(mutex);
      seen.insert(worker);
    });
  }
  EXPECT_EQ(seen.size(), 2);
}

TEST(AllowedCoresTest, AQuotaOfAnyGroupAboveCounts) {
  const TempFolder folder;
  const std::string& root = folder.path();
  std::filesystem::create_directories(root + "/a/b");
  EXPECT_EQ(FindQuota(root, "/a/b").cores, 0);
  std::ofstream(root + "/a/b/cpu.max") << "max 100000\n";
  EXPECT_EQ(FindQuota(root, "/a/b").cores, 0);
  std::ofstream(root + "/a/cpu.max") << "250000 100000\n";
  EXPECT_EQ(FindQuota(root, "/a/b").cores, 3);
  std::ofstream(root + "/cpu.max") << "50000 100000\n";  // what a container sees of its own
  EXPECT_EQ(FindQuota(root, "/a/b").cores, 1);
  EXPECT_EQ(FindQuota(root, "/").cores, 1);
  EXPECT_EQ(FindQuota(root, "/a/b").group, FindQuota(root, "/").group) << "the root's quota limits both";
  EXPECT_NE(FindQuota(root, "/a/b").group, 0);
  std::ofstream(root + "/cpu.max") << "much\n";
  EXPECT_EQ(FindQuota(root, "/a").cores, 3);
}

TEST(AllowedCoresTest, WhatThisProcessMayUse) {
  const AllowedCores cores = FindAllowedCores();
  EXPECT_GE(cores.usable, 1);
  EXPECT_LE(cores.usable, cores.in_set);
  EXPECT_FALSE(cores.set.empty());
  cpu_set_t one;
  sched_getaffinity(0, sizeof one, &one);
  const cpu_set_t all = one;
  int first = 0;
  while (!CPU_ISSET(first, &all)) ++first;
  CPU_ZERO(&one);
  CPU_SET(first, &one);
  ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
  EXPECT_EQ(FindAllowedCores().in_set, 1);
  sched_setaffinity(0, sizeof all, &all);
  EXPECT_EQ(FindAllowedCores().set, cores.set);
}

}  // namespace
}  // namespace swiftcache::engine::backend::cpu
