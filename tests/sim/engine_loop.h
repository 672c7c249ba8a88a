// SPDX-License-Identifier: Apache-2.0
// The product's step loop, scheduler and paged cache in an engine of the simulation, with clients and a device that are made
// for it. The loop runs in a fiber: virtual time passes wherever it waits, and now and then where it reads the clock.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "engine/coordinator/coordinator.h"
#include "engine/coordinator/loop_events.h"
#include "engine/coordinator/loop_message.h"
#include "engine/exec/engine_metrics.h"
#include "engine/exec/step_loop.h"
#include "engine/exec/urgency.h"
#include "tests/sim/fiber.h"
#include "tests/sim/known_model.h"
#include "tests/sim/lease_channel.h"
#include "tests/sim/need_watch.h"

namespace swiftcache::sim {

inline constexpr absl::Duration kRevokeDeadline = absl::Milliseconds(30);

/// Hears what the loop says to the coordinator, and passes it on. Thread-safety: none. Ownership: borrows its parts.
class EngineLoop final : private engine::exec::LoopObserver, private engine::coordinator::LoopEvents {
 public:
  struct Parts {
    Simulator& sim;
    Process& process;
    LeaseChannels& channels;
    engine::coordinator::Coordinator& coordinator;
    NeedWatch& needs;
    Tally& tally;
    engine::exec::EngineMetrics& metrics;
  };
  struct Options {
    std::string instance;
    int64_t num_blocks = 0, cells_per_block = 1;
    bool lends = true, borrows = true;
    bool calm = false;  // its steps are short, and it wants nothing back and gives nothing back
    PlantedBug bug = PlantedBug::kNone;
  };
  EngineLoop(const Parts& parts, const Options& options);

  void Start();
  /// Its process is about to die: the step under way ends, in no time.
  void Die() { fiber_.Finish(); }
  void Push(engine::coordinator::LoopMessage message);
  /// Its next step lasts at least this much longer.
  void Hang(Micros extra) { hang_ += extra; }
  /// From now on its clients ask for nothing more.
  void Quiesce() { quiet_ = true; }
  /// Its clients ask for so much all at once.
  void Burst(int64_t blocks);
  /// From within the loop: it waits so long.
  void Pass(Micros time);

  /// It may read there again.
  bool Knows(LeaseId id) const { return known_.contains(id); }
  int64_t num_regions() const { return static_cast<int64_t>(known_.size()); }
  int64_t num_requests() const { return static_cast<int64_t>(asked_.size()); }
  /// By own block: the lease it is away for; 0: it is at home.
  const std::vector<int64_t>& away() const { return away_; }
  int64_t num_away() const;

 private:
  /// Reading it takes time, now and then.
  class LoopClock final : public Clock {
   public:
    explicit LoopClock(EngineLoop& loop) : loop_(loop) {}
    absl::Time Now() const override;

   private:
    EngineLoop& loop_;
  };
  class Sink;
  struct Asked {
    std::vector<int32_t> tokens;  // prompt, and answer so far
    uint64_t chain = KnownModel::kRoot;
    int64_t blocks = 0, tokens_left = 0;
    bool cancelled = false;
  };

  engine::exec::EngineOptions LoopOptions() const;
  void ChooseTarget();
  Micros LayerTime();

  // The loop's thread.
  void Run();
  void CheckSleep(absl::Time due);
  void CheckInvariants();
  void WaitUntil(absl::Time due);
  void Wake(int64_t wait);
  void Note(const engine::coordinator::LoopMessage& message);
  bool IsAway(const engine::lease::Extent& extent) const;

  // Clients.
  void KeepAsking();
  void Ask(int64_t blocks);
  std::vector<int32_t> Prompt(int64_t tokens);
  void Hear(const std::string& id, int32_t token);
  void End(const std::string& id, const absl::Status& status);

  void OnStarted(const engine::exec::LiveRequest&) override {}
  void OnEnded(const engine::exec::LiveRequest&) override {}
  void OnLoad(const engine::exec::EngineLoad&) override {}
  void OnDeviceLost(const absl::Status&) override {}
  void Deliver(engine::exec::OutboundBatch batch) override { CallSinks(std::move(batch), &parts_.metrics); }

  void Cleared(LeaseId id, bool ok) override;
  void Drained(LeaseId id) override;
  void Dropped(LeaseId id) override;
  void GenerationChanged(LeaseId id) override { parts_.coordinator.GenerationChanged(id); }
  void StoreFailed(LeaseId id, const absl::Status& why) override { parts_.coordinator.StoreFailed(id, why); }
  void DonorSilent(LeaseId id) override { parts_.coordinator.DonorSilent(id); }
  void GiveBack(LeaseId id) override { parts_.coordinator.GiveBack(id); }
  void NoteHeat(LeaseId id, int64_t heat) override { parts_.coordinator.NoteHeat(id, heat); }
  engine::coordinator::StepReads& step_reads() override { return parts_.coordinator.step_reads(); }
  void NeedBack(int64_t blocks, int64_t blocks_lent) override;
  void WishForMemory(int64_t bytes, int64_t waiting_tokens) override {
    parts_.coordinator.WishForMemory(bytes, waiting_tokens);
  }
  void ReportWindow(const engine::coordinator::Window& window) override { parts_.coordinator.ReportWindow(window); }

  const Parts parts_;
  const Options options_;
  const int64_t block_tokens_;
  const LoopClock clock_;

  std::vector<engine::coordinator::LoopMessage> inbox_;
  std::vector<std::unique_ptr<engine::exec::LiveRequest>> arrivals_;
  std::vector<std::string> cancels_;
  std::map<LeaseId, engine::lease::Extent> clears_;  // that the loop was told of and has not answered
  std::vector<int64_t> away_;
  std::set<LeaseId> known_, lost_;
  std::map<std::string, Asked> asked_;
  std::deque<std::vector<int32_t>> conversations_;  // the last that ended
  int64_t last_request_ = 0, asked_blocks_ = 0, target_blocks_ = 0;
  bool quiet_ = false, waiting_ = false;
  int64_t waits_ = 0;
  int turns_without_sleep_ = 0;
  Micros hang_ = 0;

  engine::exec::Urgency urgency_;
  std::optional<engine::exec::StepLoop> loop_;
  Fiber fiber_;  // last: it uses all above
};

}  // namespace swiftcache::sim
