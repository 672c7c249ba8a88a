// SPDX-License-Identifier: Apache-2.0
// A borrower that unmaps for as long as the test likes, as one does that unmaps a gibibyte: what it has of a donor comes
// back to that donor in time all the same. Coordinators and transports are the real ones; the clock is a fake one, so that
// "in time" is a moment and no machine is too slow for it.
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "engine/coordinator/coordinator.h"
#include "engine/memory/arena.h"
#include "engine/transport/shm_transport.h"
#include "tests/engine/transport/transport_harness.h"
#include "tests/fakes/fake_clock.h"
#include "tests/fakes/gated_memory.h"
#include "tests/fakes/lease_hub.h"
#include "tests/fakes/recording_loop.h"

namespace swiftcache::engine::coordinator {
namespace {

constexpr int64_t kBlocks = 64, kBlockBytes = 4096, kLeaseBlocks = 2;
constexpr absl::Duration kDeadline = absl::Milliseconds(50);

/// An engine without a model: its loop does what it is told at once, unless it hangs.
class Peer {
 public:
  Peer(const std::string& name, const transport::ShmFolder& folder, transport::MemoryGates& gates, const Clock& clock,
       LeaseHub& hub)
      : name_(name),
        hub_(hub),
        arena_(memory::Arena::Create({.bytes = kBlocks * kBlockBytes, .block_bytes = kBlockBytes, .shared = true})
                   .value()),
        coordinator_({.instance_id = name,
                      .revoke_deadline = kDeadline,
                      .num_blocks = kBlocks,
                      .block_bytes = kBlockBytes,
                      .min_request_interval = absl::ZeroDuration()},
                     clock, metrics_) {
    auto created = transport::ShmTransport::CreateOver("shm", std::make_unique<transport::GatedMemory>(arena_, gates),
                                                       {.shm_dir = folder.path(), .name = name, .instance_id = name},
                                                       transports_clock_, coordinator_);
    EXPECT_TRUE(created.ok()) << created.status();
    transport_ = *std::move(created);
    hub_.Join({.name = name,
               .channel = transport_->channel(),
               .num_blocks = kBlocks,
               .block_bytes = kBlockBytes,
               .lends = name == "donor",
               .events = &coordinator_});
    coordinator_.Start(transport_.get(), &hub_.BrokerOf(name), [this](const LoopMessage& message) { Hear(message); });
  }
  ~Peer() {
    coordinator_.Stop(absl::InfinitePast());
    transport_->Stop();
    hub_.Leave(name_);
  }

  Coordinator& coordinator() { return coordinator_; }
  const CallLog& loop() const { return loop_.log(); }
  double Count(const std::string& counter) { return metrics_.Counter(counter, "").Value(); }
  std::atomic<bool> drains = true;

 private:
  void Hear(const LoopMessage& message) {
    loop_.push()(message);
    if (const auto* clear = std::get_if<ClearMessage>(&message)) coordinator_.Cleared(clear->id, true);
    if (const auto* use = std::get_if<UseMessage>(&message)) coordinator_.step_reads().Accept(use->id);
    if (const auto* lose = std::get_if<LoseMessage>(&message)) coordinator_.Dropped(lose->id);
    const auto* drain = std::get_if<DrainMessage>(&message);
    if (drain == nullptr || !drains) return;
    coordinator_.step_reads().Handled(drain->id);
    coordinator_.Drained(drain->id);
  }

  const std::string name_;
  LeaseHub& hub_;
  const RealClock transports_clock_;
  Metrics metrics_;
  RecordingLoop loop_;
  memory::Arena arena_;
  Coordinator coordinator_;
  std::unique_ptr<transport::ShmTransport> transport_;
};

class SlowUnmapTest : public testing::Test {
 protected:
  // Opens the gate before the peers end.
  ~SlowUnmapTest() override { unmaps().Open(); }

  Gate& unmaps() { return gates_.unmap_lease; }
  // Leases 1 to `count`, all in use.
  void Lend(int64_t count) {
    for (int64_t id = 1; id <= count; ++id) {
      borrower_.coordinator().WishForMemory(kLeaseBlocks * kBlockBytes, 0);
      ASSERT_TRUE(borrower_.loop().WaitFor(absl::StrCat("Use ", id, " of ", kLeaseBlocks)));
    }
  }
  // The first of the leases that have not ended.
  void RevokeNext() { ASSERT_TRUE(hub_.Revoke(0)); }
  // In the fake clock's present, and whoever unmaps.
  void ExpectBack(int64_t id) {
    ASSERT_TRUE(donor_.loop().WaitFor(absl::StrCat("TakeBack ", id)));
    const absl::Time give_up = absl::Now() + CallLog::kPatience;
    while (hub_.ended() < id && absl::Now() < give_up) absl::SleepFor(absl::Milliseconds(1));
    ASSERT_EQ(hub_.ended(), id);
  }

  FakeClock clock_;
  transport::MemoryGates gates_;
  transport::ShmFolder folder_;
  LeaseHub hub_;
  Peer donor_{"donor", folder_, gates_, clock_, hub_}, borrower_{"borrower", folder_, gates_, clock_, hub_};
};

TEST_F(SlowUnmapTest, ItsDonorIsNotLateAndItsOtherLeasesEndInTimeMeanwhile) {
  ASSERT_NO_FATAL_FAILURE(Lend(5));  // that the donor knows the fifth says that it knows the others' borrower
  unmaps().Close();
  RevokeNext();
  ASSERT_NO_FATAL_FAILURE(ExpectBack(1));  // and then it is unmapped
  ASSERT_TRUE(unmaps().WaitUntilSomebodyHangs());

  RevokeNext();  // the loop drains it
  ASSERT_NO_FATAL_FAILURE(ExpectBack(2));

  ASSERT_TRUE(borrower_.coordinator().step_reads().Begin({kv::LeaseId(3)}, {}));
  RevokeNext();  // the step under way does not read it
  ASSERT_NO_FATAL_FAILURE(ExpectBack(3));
  borrower_.coordinator().step_reads().End();

  borrower_.drains = false;
  RevokeNext();  // and the loop hangs
  ASSERT_TRUE(borrower_.loop().WaitFor("Drain 4"));
  clock_.Advance(kDeadline);
  donor_.coordinator().ReportWindow({});  // wakes it
  ASSERT_NO_FATAL_FAILURE(ExpectBack(4));

  EXPECT_EQ(donor_.Count("swiftcache_lease_revoked_total"), 4);
  EXPECT_EQ(donor_.Count("swiftcache_lease_fenced_total"), 1);
  EXPECT_EQ(donor_.Count("swiftcache_lease_late_total"), 0);
  EXPECT_EQ(borrower_.Count("swiftcache_lease_unread_total"), 1);
}

}  // namespace
}  // namespace swiftcache::engine::coordinator
