// SPDX-License-Identifier: Apache-2.0
// What it costs to ask a donor's transport for its totals, which the loop does twice a step, and who waits for it.
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>

#include "absl/synchronization/notification.h"
#include "common/base/status_macros.h"
#include "engine/transport/shm_memory.h"
#include "tests/engine/transport/test_lease.h"
#include "tests/engine/transport/transport_harness.h"
#include "tests/fakes/gate.h"

namespace swiftcache::engine::transport {
namespace {

using kv::LeaseId;

// Counts the looks at what borrowers have read; each hangs at the gate.
class CountedLooks final : public ShmMemory {
 public:
  CountedLooks(memory::Arena& arena, Gate& gate, std::atomic<int>& looks)
      : ShmMemory(arena, {}, /*remaps=*/false), gate_(gate), looks_(looks) {}
  absl::StatusOr<std::unique_ptr<PeerStaging>> MapStaging(int64_t bytes,
                                                          std::span<const memory::UniqueFd> fds) override {
    ASSIGN_OR_RETURN(std::unique_ptr<PeerStaging> mapped, ShmMemory::MapStaging(bytes, fds));
    return std::make_unique<Staging>(std::move(mapped), gate_, looks_);
  }

 private:
  class Staging final : public PeerStaging {
   public:
    Staging(std::unique_ptr<PeerStaging> mapped, Gate& gate, std::atomic<int>& looks)
        : mapped_(std::move(mapped)), gate_(gate), looks_(looks) {}
    int64_t bytes() const override { return mapped_->bytes(); }
    uint64_t reads() const override {
      ++looks_;
      gate_.Pass();
      return mapped_->reads();
    }

   private:
    const std::unique_ptr<PeerStaging> mapped_;
    Gate& gate_;
    std::atomic<int>& looks_;
  };

  Gate& gate_;
  std::atomic<int>& looks_;
};

struct Donor {
  explicit Donor(const ShmFolder& folder)
      : arena(memory::Arena::Create(
                  {.bytes = kArenaBytes, .block_bytes = kBlockBytes, .shared = true, .chunk_bytes = kMiB})
                  .value()) {
    auto created =
        ShmTransport::CreateOver("shm", std::make_unique<CountedLooks>(arena, gate, looks),
                                 {.shm_dir = folder.path(), .name = "donor", .instance_id = "donor"}, clock, events);
    EXPECT_TRUE(created.ok()) << created.status();
    transport = *std::move(created);
  }
  // Looks that one question takes.
  int LooksNow() {
    looks = 0;
    (void)transport->stats();
    return looks;
  }

  Gate gate;
  std::atomic<int> looks = 0;
  RealClock clock;
  memory::Arena arena;
  RecordingTransportEvents events;
  std::unique_ptr<ShmTransport> transport;  // last: it uses all others
};

class ShmStatsTest : public testing::Test {
 protected:
  // A page of the donor's, once the donor has noted who reads there.
  LeaseView LendPage(Node& borrower, int64_t id) {
    const absl::StatusOr<kv::Epoch> epoch = donor_.transport->Grant({.lease = LeaseId(id),
                                                                     .offset_bytes = id * 4096,
                                                                     .bytes = 4096,
                                                                     .borrower_instance = borrower.instance,
                                                                     .capability = kCapability});
    const absl::StatusOr<LeaseView> view = OpenNow(borrower, {.lease = LeaseId(id),
                                                              .channel = donor_.transport->channel(),
                                                              .capability = kCapability,
                                                              .bytes = 4096,
                                                              .epoch = epoch.value_or(kv::Epoch()),
                                                              .store_bytes = 4096});
    EXPECT_TRUE(view.ok()) << view.status();
    EXPECT_TRUE(donor_.events.WaitFor([&] { return donor_.events.borrower_opened.contains(LeaseId(id)); }));
    return view.value_or(LeaseView());
  }
  void CloseNow(Node& borrower, int64_t id) {
    borrower.transport->Close(LeaseId(id));
    ASSERT_TRUE(donor_.events.WaitFor([&] { return donor_.events.borrower_gone.contains(LeaseId(id)); }));
  }

  ShmFolder folder_;
  Donor donor_{folder_};
  Node first_{folder_, {.name = "first"}}, second_{folder_, {.name = "second"}};
};

TEST_F(ShmStatsTest, NoFenceWaitsForWhoAsks) {
  (void)LendPage(first_, 1);
  donor_.gate.Close();
  std::thread asks([&] { (void)donor_.transport->stats(); });
  ASSERT_TRUE(donor_.gate.WaitUntilSomebodyHangs());
  absl::Notification fenced;
  std::thread fences([&] {
    donor_.transport->Fence(LeaseId(1));
    fenced.Notify();
  });
  EXPECT_TRUE(fenced.WaitForNotificationWithTimeout(absl::Seconds(10)));
  donor_.gate.Open();
  asks.join();
  fences.join();
}

TEST_F(ShmStatsTest, TheyCostALookAtEachBorrowerHoweverManyLeasesItHas) {
  EXPECT_EQ(donor_.LooksNow(), 0);
  for (int64_t id = 1; id <= 7; ++id) (void)LendPage(first_, id);
  const LeaseView last = LendPage(first_, 8);
  EXPECT_EQ(donor_.LooksNow(), 1);
  (void)LendPage(second_, 9);
  EXPECT_EQ(donor_.LooksNow(), 2);
  for (int64_t id = 1; id <= 7; ++id) ASSERT_NO_FATAL_FAILURE(CloseNow(first_, id));
  EXPECT_EQ(donor_.LooksNow(), 2);
  const uint64_t before = donor_.transport->stats().borrowers_read;
  last.NoteRead(1000);
  EXPECT_NE(donor_.transport->stats().borrowers_read, before) << "the lease that is left shows it as well";
  ASSERT_NO_FATAL_FAILURE(CloseNow(second_, 9));
  EXPECT_EQ(donor_.LooksNow(), 1);
  ASSERT_NO_FATAL_FAILURE(CloseNow(first_, 8));
  EXPECT_EQ(donor_.LooksNow(), 0);
}

}  // namespace
}  // namespace swiftcache::engine::transport
