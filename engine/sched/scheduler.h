// SPDX-License-Identifier: Apache-2.0
// Decides what the next step computes: who runs, how many tokens of each, who gives way when the arena is full.
//
//   scheduler.Add(&sequence);
//   StepPlan plan = scheduler.Plan();
//   ...compute the rows of plan.chunks...
//   scheduler.Commit(plan);       // then append the sampled tokens
//   scheduler.Remove(&sequence);  // finished or cancelled
#pragma once

#include <cstdint>
#include <set>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "engine/kv/regular_cache.h"
#include "engine/sched/sequence.h"

namespace swiftcache::engine::sched {

/// The next `num_tokens` tokens of a sequence, from computed_tokens on.
struct Chunk {
  Sequence* sequence = nullptr;
  int64_t num_tokens = 0;
  bool samples = false;  // the chunk reaches the end of the tokens, so the next one can be sampled
};

struct StepPlan {
  std::vector<Chunk> chunks;
  std::vector<Sequence*> admitted;   // run for the first time
  std::vector<Sequence*> preempted;  // lost their blocks and wait again
};

/// Continuous batching with chunked prefill, first come first served within a priority.
///
/// A step takes decodes first, then prefills under way, then admits; all within max_num_batched_tokens and
/// max_num_seqs. A waiting sequence is admitted when its tokens fit beside what the running ones still need for theirs;
/// nobody overtakes it. Where blocks run out, cached ones that nobody uses go first (least recently used), then the
/// running sequence that would be served last is preempted, for one that is served before it: its blocks are released
/// (full ones stay cached until evicted) and it waits in its old place in the order. A waiting sequence of larger
/// priority preempts running ones of smaller priority.
///
/// Progress: the running sequence served first always gets a token or more, since everybody else can be made to give
/// way and it fits alone (REQUIRES of Add). By the same order no waiting sequence is served before a running one of its
/// priority, so each gets there.
///
/// Thread-safety: none; the step loop owns it. Ownership: borrows sequences (until Remove) and the cache. Errors: none.
class Scheduler {
 public:
  struct Options {
    int64_t max_num_seqs = 64;
    int64_t max_num_batched_tokens = 512;
  };
  Scheduler(const Options& options, kv::RegularCache* cache);

  /// REQUIRES: not added yet, at least one token, and it never grows past the tokens that the whole cache holds (plus
  /// the last sampled one, whose KV is not needed).
  void Add(Sequence* sequence);
  /// Takes the sequence out, wherever it is, and frees its blocks. REQUIRES: no plan that names it is under way.
  void Remove(Sequence* sequence);
  /// Decides a step and takes the blocks it needs. Empty only if nothing was added.
  StepPlan Plan();
  /// The step's KV is in the blocks: counts it, and offers full blocks to other sequences.
  void Commit(const StepPlan& plan);

  bool has_work() const { return !running_.empty() || !waiting_.empty(); }
  int64_t num_running() const { return static_cast<int64_t>(running_.size()); }
  int64_t num_waiting() const { return static_cast<int64_t>(waiting_.size()); }
  bool is_running(const Sequence* sequence) const;
  /// Recounts blocks and order. INTERNAL says what does not add up.
  absl::Status CheckInvariants() const;

 private:
  struct Step;  // a plan in the making
  void PlanDecodes(Step& step);
  void PlanPrefills(Step& step);
  void Admit(Step& step);
  void AddChunk(Step& step, Sequence* sequence, int64_t num_tokens);
  void PreemptLast(Step& step);
  bool MakeRoomFor(Step& step, Sequence* sequence, int64_t tokens);
  bool HasPlaceFor(const Sequence& sequence) const;
  bool MayDisplaceFor(const Sequence& sequence) const;
  int64_t Fitting(const Sequence& sequence) const;
  int64_t MissingBlocks(const Sequence& sequence) const;

  const Options options_;
  kv::RegularCache* const cache_;
  std::vector<Sequence*> running_;  // in the order of service
  std::set<Sequence*, ServedBefore> waiting_;
};

}  // namespace swiftcache::engine::sched
