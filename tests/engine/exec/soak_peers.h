// SPDX-License-Identifier: Apache-2.0
// All that an engine which shares its memory meets, played by chance from a seed: donors, borrowers, the broker, time.
// Between them and the loop stands the real coordinator with both lease halves.
//
//   SoakPeers peers(options, random);
//   peers.Start(own_memory);
//   peers.Happen();                                        // something, somewhere; also in the midst of a step
//   for (const coordinator::LoopMessage& m : peers.TakeMessages(3)) loop.Handle(m);
//   peers.LoopSpoke();                                      // what the loop said has come to be
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "engine/coordinator/coordinator.h"
#include "engine/coordinator/loop_message.h"
#include "engine/exec/urgency.h"
#include "engine/kv/sharing_worth.h"
#include "tests/engine/exec/loan_auditor.h"
#include "tests/fakes/fake_clock.h"
#include "tests/fakes/fake_transport.h"

namespace swiftcache::engine::exec {

using coordinator::LoopMessage;

/// Where chance comes from, the same everywhere.
class Chance {
 public:
  explicit Chance(uint64_t seed) : random_(seed) {}
  /// In [low, high].
  int64_t Between(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(random_() % static_cast<uint64_t>(high - low + 1));
  }
  bool OneIn(int64_t n) { return Between(1, n) == 1; }

 private:
  std::mt19937_64 random_;
};

/// What happened in all runs; the test prints it, and sees that each did.
struct SoakTally {
  int64_t granted = 0, fenced = 0, fenced_in_steps = 0, revoked = 0, donors_gone = 0, released = 0, lost = 0;
  int64_t unread = 0;                                              // released, since no step read them
  int64_t stored = 0, refused_stores = 0, fetches = 0;             // of these leases
  int64_t lent = 0, asked_back = 0, taken_back = 0, declined = 0;  // as a donor
  int64_t lent_byte_seconds = 0, ended_for_need = 0, given_back = 0, borrowers_gone = 0;
  kv::SharingWorth sharing;
  int64_t requests = 0, cancelled = 0, starved = 0, tokens = 0, donor_tokens = 0, steps = 0, preemptions = 0;
  int64_t went_on = 0;                            // steps, where the one before was cut short
  int64_t again = 0, most_losses = 0;             // tokens computed again because of leases; losses of one sequence
  int64_t stores_behind = 0, streams_behind = 0;  // asked for before what they follow was done
  int64_t first_layers_found = 0;                 // slices that the step before had brought
  friend bool operator==(const SoakTally&, const SoakTally&) = default;
};

/// The coordinator's thread is waited for after each thing that is said to it, so that a seed is always the same run.
/// Thread-safety: none but where it is called by the coordinator. Ownership: owns transport, clock and coordinator,
/// borrows the engine's memory. Errors: failure() says what an owner of memory saw that must not be.
class SoakPeers final : private coordinator::LeaseBroker {
 public:
  struct Options {
    int64_t num_blocks = 0, block_bytes = 0;  // of the engine's arena
    bool scrubbed = true;                     // what it lends
  };
  SoakPeers(const Options& options, Chance& chance, SoakTally& tally);
  ~SoakPeers() override { coordinator_.Stop(absl::InfinitePast()); }
  void Start(std::byte* own_memory);

  /// Something of what others do. `in_step`: while the engine computes.
  void Happen(bool in_step);
  void Advance(absl::Duration by);
  /// Up to so many messages for the loop, in order.
  std::vector<LoopMessage> TakeMessages(int64_t max);
  /// After each call of the loop: whoever looks next sees what came of what it said.
  void LoopSpoke() { unsettled_ = true; }
  /// What was said has come to be. Before each step, which asks what the coordinator has heard (StepReads).
  void Settle();
  /// From now on peers answer, and take and give no more: what is under way ends. To be called until AtRest.
  void WindDown();
  bool AtRest();
  /// What there was in this run.
  struct Dealings {
    bool offered = false, borrowed = false;  // of the engine's memory; others'
  };
  Dealings dealings() const { return dealings_; }
  void TallyAccounts();
  /// What the engine says it has lent is, to the byte, what its borrowers had. Empty, or what differs. Also looked at
  /// whenever time goes on.
  std::string CheckAccounts();

  FakeClock& clock() { return clock_; }
  transport::FakeTransport& transport() { return transport_; }
  coordinator::Coordinator& coordinator() { return coordinator_; }
  Urgency& urgency() { return urgency_; }
  const std::string& failure() const { return failure_; }

 private:
  struct Taken {  // a lease of another's memory
    int64_t blocks = 0;
    bool asked = false, open = false, fenced = false, revoked = false, released = false, abandoned = false;
    absl::Time fence_at = absl::InfiniteFuture();
    std::vector<transport::FakeTransport::PendingStore> stores;  // not answered, in order
    size_t landed = 0;                                           // of these
  };
  struct Given {  // a lease of our engine's memory
    lease::Extent extent;
    bool granted = false, open = false;
  };
  using TakenIt = std::map<kv::LeaseId, Taken>::iterator;
  using GivenIt = std::map<kv::LeaseId, Given>::iterator;

  // Donors.
  void Grant();
  void AnswerOpen(TakenIt taken);
  void Revoke(TakenIt taken);
  void RevokeAndWait(TakenIt taken);
  void Fence(TakenIt taken, bool in_step);
  void LeaveDonor(TakenIt taken, bool in_step);
  void AnswerStores(TakenIt taken, int64_t count);
  void Refuse(TakenIt taken);
  void FenceOverdue();
  // Borrowers.
  void Borrow();
  void GoOnBorrowing(GivenIt given);
  void GiveBack(GivenIt given);
  // The broker.
  void AnswerWish();
  void AdviseScaleUp();

  template <typename Leases>
  auto Some(Leases& leases) {
    return std::next(leases.begin(), chance_.Between(0, static_cast<int64_t>(leases.size()) - 1));
  }
  coordinator::Coordinator& Tell() {
    unsettled_ = true;
    return coordinator_;
  }
  void Notice();
  void Notice(const std::string& what, kv::LeaseId id);
  void NoticeOf(TakenIt taken, const std::string& what);
  void NoticeOf(GivenIt given, const std::string& what);
  void ForgetDeclined();
  void TakeStores();
  void Wait() ABSL_LOCKS_EXCLUDED(mutex_);
  bool Waited() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return heard_marks_ == marks_; }
  std::byte* Begin(const lease::Extent& extent) const {
    return own_memory_ + extent.first_block * options_.block_bytes;
  }
  void ExpectFilled(const lease::Extent& extent, std::byte with, const std::string& otherwise);

  // To the loop: by the coordinator's thread and, of stores, by ours.
  void Push(LoopMessage message) ABSL_LOCKS_EXCLUDED(mutex_) {
    urgency_.Note(message, clock_.Now());
    absl::MutexLock lock(&mutex_);
    messages_.push_back(std::move(message));
  }
  // The broker, called by the coordinator's thread.
  void RequestLease(const coordinator::LeaseRequest& request) override {
    absl::MutexLock lock(&mutex_);
    wanted_bytes_ = request.want_bytes;
  }
  void RequestScaleUp(int64_t question, int64_t) override {
    absl::MutexLock lock(&mutex_);
    scale_up_asked_ = question;
  }
  void Report(const coordinator::LeaseEvent& news) override {
    absl::MutexLock lock(&mutex_);
    const bool granted = news.lease.epoch != kv::Epoch();
    if (news.lease.state == lease::State::kReleased && !granted) declined_.push_back(news.lease.id);
  }
  void ReportWindow(const coordinator::Window& window) override {
    absl::MutexLock lock(&mutex_);
    if (window.used_blocks < 0) heard_marks_ = -window.used_blocks;
  }

  const Options options_;
  Chance& chance_;
  SoakTally& tally_;
  const int64_t calm_;  // the more, the longer leases live
  const bool borrow_;   // while anything is lent the engine spills nothing to its leases
  FakeClock clock_;
  Metrics registry_;
  Urgency urgency_;
  transport::FakeTransport transport_;
  LoanAuditor auditor_{transport_, clock_};
  std::byte* own_memory_ = nullptr;
  std::map<kv::LeaseId, Taken> taken_;
  std::map<kv::LeaseId, Given> given_;
  int64_t last_lease_ = 0;
  size_t noticed_ = 0;  // of the transport's calls
  Dealings dealings_;
  bool winding_down_ = false;
  bool unsettled_ = false;  // the coordinator was told something
  std::string failure_;

  mutable absl::Mutex mutex_;
  std::vector<LoopMessage> messages_ ABSL_GUARDED_BY(mutex_);
  int64_t wanted_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<kv::LeaseId> declined_ ABSL_GUARDED_BY(mutex_);
  int64_t scale_up_asked_ ABSL_GUARDED_BY(mutex_) = 0;  // 0: nothing is
  int64_t marks_ ABSL_GUARDED_BY(mutex_) = 0, heard_marks_ ABSL_GUARDED_BY(mutex_) = 0;
  coordinator::Coordinator coordinator_;  // last: its thread uses what is above
};

}  // namespace swiftcache::engine::exec
