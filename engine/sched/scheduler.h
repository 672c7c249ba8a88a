// SPDX-License-Identifier: Apache-2.0
// Decides what the next step computes: who runs, how many tokens of each, who gives way when memory is full.
//
//   scheduler.Add(&sequence);
//   StepPlan plan = scheduler.Plan();
//   ...if plan.chunks is empty, wait for a message; else compute their rows...
//   scheduler.NoteComputed(plan);
//   scheduler.Commit(plan);       // then append the sampled tokens
//   scheduler.Remove(&sequence);  // finished or cancelled
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "engine/kv/sequence_blocks.h"
#include "engine/sched/sequence.h"

namespace swiftcache::engine::sched {

/// The next `num_tokens` tokens of a sequence, from computed_tokens on.
struct Chunk {
  Sequence* sequence = nullptr;
  int64_t num_tokens = 0;
  bool samples = false;  // the chunk reaches the end of the tokens, so the next one can be sampled
};

/// A chunk of a plan, for when the plan is gone.
struct ChunkOnce {
  SequenceId sequence;
  int64_t begin = 0, num_tokens = 0;
};

struct StepPlan {
  std::vector<Chunk> chunks;
  std::vector<Sequence*> admitted;   // run for the first time
  std::vector<Sequence*> preempted;  // lost their blocks and wait again
  bool waits = false;                // somebody got no tokens, because room for them is on its way or has to be leased
  bool leaves_out_readers = false;   // of leases, since it is the turn of the others
};

/// Continuous batching with chunked prefill, first come first served within a priority.
///
/// A step takes decodes first, then prefills under way and who is more urgent, then admits; all within max_num_batched_tokens and
/// max_num_seqs. A waiting sequence is admitted when its tokens fit beside what the running ones still need for theirs;
/// nobody overtakes it, unless it needs more than own memory and leases come to at present. Where blocks run out, the
/// cache finds room in its own ways (kv::KvCache), for which a sequence may have to wait: it gets no tokens in this
/// step, others do. Where it finds none, the running sequence that would be served last is preempted, for one that is
/// served before it: its blocks are released (full ones stay cached until evicted) and it waits in its old place in the
/// order. A waiting sequence of larger priority comes before the rest of a prompt of smaller priority, and preempts running
/// ones of smaller priority where it has a place without them.
///
/// A step that reads leases is short (max_tokens_touching_regions). So that prompts which read none are not held back by
/// that, they take turns where both want more together and a full step is over twice as long: one that leaves out who
/// reads leases, then one within the limit in which those prefill first. Decodes that read none are in both. What fits
/// within the limit, or is of one kind, is computed as ever.
///
/// A sequence whose blocks a lease took along is Reset. What is intact of them stays cached, also behind the hole (see
/// kv::PrefixTree): its chunks end where a hole ends, and what lies behind is attached again. After kMaxLosses losses it
/// runs from owned memory: it attaches nothing that lies in a lease and its blocks are not spilled. If it is too long for
/// that, it goes on with leases, until it IsExhausted: whoever owns the sequences ends it then.
///
/// Progress: each plan first offers room to the running sequence served first, also where it is left out (who comes and
/// is more urgent than a prompt is served before it from then on). Then one of these holds:
///   - it gets a token, in every other step that is computed at least;
///   - it waits for room that is on its way, which comes: a move ends, lent memory is fenced by its deadline;
///   - all others have given way, and own memory and leases, less than when it was admitted, do not hold it: it gives
///     its blocks back and waits, while others run, until they do.
/// Alone it fits, if it fits at all: all of its blocks but the last can be spilled, all idle ones evicted. Who fits
/// into owned memory alone loses blocks at most kMaxLosses times, so it ends whatever becomes of the leases.
///
/// Who does not depends on leases, and each of its tokens that is computed is a new one or computed again. Of the latter
/// there are at most kMaxAgain times its tokens and a chunk before it is exhausted, so it computes for a bounded time:
/// as long as kMaxAgain + 1 times its tokens take. What of its time it does not compute it waits: behind others, as
/// everybody does, or for room (it Starves), and of that its owner grants it so much and no more
/// (StepLoop::EndStarved). So it ends too, with its tokens or with an error, whatever becomes of the leases.
///
/// By the same order no waiting sequence that fits is served before a running one of its priority, so each gets there. Of
/// two that run and take turns the later may get more tokens than the earlier, but none of its turns.
///
/// Thread-safety: none; the step loop owns it. Ownership: borrows sequences (until Remove) and the cache. Errors: none.
class Scheduler {
 public:
  static constexpr int64_t kMaxLosses = 2;
  static constexpr int64_t kMaxAgain = 16;
  struct Options {
    int64_t max_num_seqs = 64;
    int64_t max_num_batched_tokens = 512;
    /// Of a step in which somebody's blocks lie in leases, so that a layer of it is short; but always enough for a
    /// token of each. 0: no such limit.
    int64_t max_tokens_touching_regions = 0;
  };
  Scheduler(const Options& options, kv::SequenceBlocks* cache);

  /// True where the sequence could run with all the leases that there may ever be.
  bool CanEverFit(int64_t tokens) const;
  /// True where it could run now, if it were alone. A running one that does not gives way, and waits until it does.
  bool Fits(const Sequence& sequence) const;
  /// Whether a sequence of so many tokens cannot run from own memory.
  bool NeedsLeases(int64_t tokens) const;
  /// It cannot run, or needs leases and was given no room in the last plan.
  bool Starves(const Sequence& sequence) const;
  /// Leases that were taken back made it compute so much again that it would not end, and it is too long for own memory.
  bool IsExhausted(const Sequence& sequence) const;
  /// One that does not fit waits until it does, and Starves meanwhile: leases that it would fit into may leave at any
  /// time. REQUIRES: not added yet, at least one token.
  void Add(Sequence* sequence);
  /// Takes the sequence out, wherever it is, and frees its blocks. REQUIRES: no plan that names it is under way.
  void Remove(Sequence* sequence);
  /// The most tokens of prompts that a step from now on computes beside decodes, and that one in which somebody's blocks
  /// lie in leases does; at least 1. Without decodes it is max_num_batched_tokens alone that counts.
  void LimitPromptTokensBesideDecodes(int64_t tokens, int64_t on_leases) {
    prompt_tokens_beside_decodes_ = tokens;
    prompt_tokens_on_leases_ = on_leases;
  }
  /// Instead of max_tokens_touching_regions, which it does not exceed; at least 1.
  void LimitTokensTouchingRegions(int64_t tokens) { tokens_touching_regions_ = tokens; }
  /// Decides a step and takes the blocks it needs. No chunks: nothing was added, or all wait.
  StepPlan Plan();
  /// The last plan once more, of a step that was cut short: whoever has come since waits. `chunks`: its own. None: not all
  /// of their sequences still run; those that do have the blocks that the plan took.
  std::optional<StepPlan> PlanAgain(std::span<const ChunkOnce> chunks) const;
  /// The step was computed, whatever has become of what it read, or ended before since that was lost: counts what was
  /// computed again.
  void NoteComputed(const StepPlan& plan);
  /// The step's KV is in the blocks: counts it, and offers full blocks to other sequences. A sequence of the plan that
  /// was Reset since is left out.
  void Commit(const StepPlan& plan);
  /// A lease took blocks of the sequence along: it releases all, and waits in its old place to be computed again.
  void Reset(Sequence* sequence);

  bool has_work() const { return !running_.empty() || !waiting_.empty(); }
  int64_t num_running() const { return static_cast<int64_t>(running_.size()); }
  int64_t num_waiting() const { return static_cast<int64_t>(waiting_.size()); }
  /// Of all that wait.
  int64_t waiting_tokens() const { return waiting_tokens_; }
  /// Blocks that those that run will take for the tokens that they have.
  int64_t missing_blocks() const;
  /// Groups of which a sequence runs.
  int64_t num_running_groups() const { return num_running_groups_; }
  /// In the order of service.
  std::span<Sequence* const> running() const { return running_; }
  bool is_running(const Sequence* sequence) const;
  /// Recounts blocks, order and sums. INTERNAL says what does not add up.
  absl::Status CheckInvariants() const;

 private:
  enum class Turn;
  struct Needs;
  struct Step;  // a plan in the making
  void Enqueue(Sequence* sequence);
  bool Dequeue(Sequence* sequence);
  void EnterRunning(Sequence* sequence);
  void LeaveRunning(Sequence* sequence);
  void PlanRunning(Step& step);
  void TakeTurn(Step& step) const;
  void LimitPrompts(Step& step) const;
  int64_t PromptTokensBesideDecodes(std::optional<int64_t> limit, bool in_turns) const;
  void BeginAcrossTiers(Step& step);
  void AttachMore(Sequence& sequence);
  void PlanDecodes(Step& step);
  void PlanPrefills(Step& step, bool readers);
  void Admit(Step& step, std::optional<int32_t> above = std::nullopt);
  bool LimitFor(Step& step, const Sequence& sequence) const;
  bool Start(Step& step, Sequence* sequence);
  void AddChunk(Step& step, Sequence* sequence, int64_t num_tokens);
  bool MakeRoomFor(Step& step, Sequence* sequence);
  void WaitAgain(Sequence* sequence);
  void GiveWay(Step& step, Sequence* victim);
  void Count(Needs& needs, const Sequence& sequence, int64_t sign) const;
  bool HasPlaceFor(const Needs& running, Sequence& sequence, int64_t more_available = 0) const;
  bool MayDisplaceFor(Needs running, Sequence& sequence, bool began) const;
  bool RunsFromOwned(const Sequence& sequence) const;
  int64_t Wanted(const Step& step, const Sequence& sequence) const;
  int64_t Fitting(const Sequence& sequence, int64_t num_tokens) const;
  int64_t MostTouchingRegions() const { return std::max(tokens_touching_regions_, num_running()); }
  int64_t BlocksOf(const Sequence& sequence) const;
  int64_t MissingBlocks(const Sequence& sequence) const;

  const Options options_;
  std::optional<int64_t> prompt_tokens_beside_decodes_, prompt_tokens_on_leases_;  // none: no such limit
  kv::SequenceBlocks* const cache_;
  int64_t tokens_touching_regions_;  // 0: no such limit
  std::vector<Sequence*> running_;   // in the order of service
  std::set<Sequence*, ServedBefore> waiting_;
  int64_t waiting_tokens_ = 0, num_running_groups_ = 0;
  bool leaves_out_readers_ = false;  // the last plan
  bool left_out_readers_ = false;    // the last step that was computed
};

}  // namespace swiftcache::engine::sched
