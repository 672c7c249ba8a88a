// SPDX-License-Identifier: Apache-2.0
// One engine that shares its memory, from one seed: the real loop, forward, scheduler, cache, coordinator and lease
// halves, a model that reads every byte of KV, and peers that do what peers may do, at any moment.
//
//   SoakTally tally;
//   EXPECT_EQ(SharingSoak({.seed = 7}, tally).Run(), "");   // or what went wrong
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/exec/step_loop.h"
#include "tests/engine/exec/recording_sink.h"
#include "tests/engine/exec/soak_peers.h"
#include "tests/fakes/fake_model.h"
#include "tests/fakes/late_kv_memory.h"

namespace swiftcache::engine::exec {

/// Faults of a reader of leases. They live in what the fake transport tells readers, not in the product.
enum class ReaderBug {
  kNone,
  kNoGenerationCheck,  // LeaseView::Holds is true, whatever happened, and so is every load good
  kOnlyFirstCheck,     // in a step, only the check of the first layer is honest
  kMovesUnchecked,     // between steps there is no check: of what comes home, or leaves for another lease
  kSlotsKeepAnyFirst,  // what came to a slot for the next step is read by whichever block has the slot then
  // Of a device that computes late.
  kWordsComparedEarly,  // before the last read of a lease
  kStoredEarly,         // a step seems done before its last layer's KV is written: a store may begin
  kSlotsReusedEarly,    // before their reader is done
  kTokensReadEarly,     // before they were computed
  kZeroedLate,          // a block, when its new owner has written already
};

struct SoakOptions {
  uint64_t seed = 0;
  ReaderBug bug = ReaderBug::kNone;
  StreamMode stream = StreamMode::kInPlace;
  int64_t actions = 200;
  bool mapped = true;           // else leases are read through streams and loads alone
  bool measures_links = false;  // and half of them are slow
  bool late = false;            // on a device that computes late, in memory that the host cannot touch
};

/// Thread-safety: none. Errors: Run's answer.
class SharingSoak : private LoopObserver {
 public:
  SharingSoak(const SoakOptions& options, SoakTally& tally);

  /// Empty, or what went wrong first: a wrong token, an error that no client should see, something left behind.
  std::string Run();
  EngineLoad load() const { return loop_->load(); }

 private:
  struct Asked {
    Request request;
    std::shared_ptr<Recording> recording;
    bool fits_own_memory = true;
    bool cancelled = false;
  };

  void Act();
  void Ask();
  std::vector<int32_t> Prompt(int64_t max_tokens);
  void CancelSome();
  void Step();
  void ServeBetweenSteps();
  void Hear(int64_t max_messages);
  void EnterLayer(int64_t layer);
  void Meanwhile();
  void TellReaders();
  int64_t num_live() const;
  std::string Drain();
  std::string Check() const;
  std::string CheckAtRest();
  std::string CheckWorth(const EngineLoad& load);
  std::string CheckOutcome(const Asked& asked);

  void OnStarted(const LiveRequest&) override {}
  void OnEnded(const LiveRequest& request) override;
  void OnLoad(const EngineLoad&) override {}
  void OnDeviceLost(const absl::Status&) override {}
  void Deliver(OutboundBatch batch) override { CallSinks(std::move(batch), metrics_.get()); }

  const SoakOptions options_;
  SoakTally& tally_;
  Chance chance_;
  LateQueue queue_;
  FakeModelOptions model_;
  EngineOptions engine_;
  int64_t num_blocks_ = 0;
  int64_t own_tokens_ = 0;  // that always fit into own memory
  std::unique_ptr<SoakPeers> peers_;
  Metrics registry_;
  std::unique_ptr<EngineMetrics> metrics_;
  std::unique_ptr<StepLoop> loop_;
  std::vector<Asked> asked_;
  std::string unbounded_;  // what computed more than it may
  int64_t computed_ = 0;   // tokens
  int64_t layer_ = kNoStep;
  static constexpr int64_t kNoStep = -2, kGathered = -1;
};

}  // namespace swiftcache::engine::exec
