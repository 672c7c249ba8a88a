// SPDX-License-Identifier: Apache-2.0
#include "engine/sched/scheduler.h"

#include <algorithm>
#include <utility>

#include "glog/logging.h"

namespace swiftcache::engine::sched {
namespace {

Scheduler::Options Consistent(Scheduler::Options options) {
  options.max_num_seqs = std::min(options.max_num_seqs, options.max_num_batched_tokens);
  return options;
}

// What is longer than own memory needs a block there beside the one that is spilled.
bool FitsInto(int64_t blocks, const kv::SequenceBlocks& cache, int64_t capacity_blocks) {
  const int64_t local = cache.num_usable_local();
  return blocks <= local || (local >= 2 && blocks <= capacity_blocks);
}

}  // namespace

// Of those that run. kReaders: of those that read leases, where a step of the others has left them tokens.
enum class Scheduler::Turn { kAll, kReadersFirst, kReaders, kOthers };

// Of some that run: how many, blocks that they lack for their tokens, and those that must be local.
struct Scheduler::Needs {
  int64_t sequences = 0, missing_blocks = 0, owned_blocks = 0;
};

struct Scheduler::Step {
  StepPlan plan;
  int64_t budget_tokens = 0;
  int64_t used_tokens = 0;
  const Sequence* without_room = nullptr;  // asked already, has to wait
  Turn turn = Turn::kAll;
  int64_t readers = 0;          // where turns are taken: how many read leases
  bool readers_decode = false;  // likewise: some of these decode
  Needs needs = {};             // of the running, while others are admitted

  // No more than `max_tokens` in the whole step.
  void Limit(int64_t max_tokens) { budget_tokens = std::min(budget_tokens, max_tokens - used_tokens); }
  void Spend(int64_t tokens) {
    budget_tokens -= tokens;
    used_tokens += tokens;
  }
  bool Reads(const Sequence& sequence) const { return turn != Turn::kAll && sequence.reads_leases; }
  bool MayRun(const Sequence& sequence) const {
    return sequence.reads_leases ? turn != Turn::kOthers : turn != Turn::kReaders;
  }
};

// A step has a token for each running sequence: more of them than tokens in a step would only hold blocks and wait.
Scheduler::Scheduler(const Options& options, kv::SequenceBlocks* cache)
    : options_(Consistent(options)), cache_(cache), tokens_touching_regions_(options_.max_tokens_touching_regions) {
  CHECK_GT(options_.max_num_seqs, 0);
}

bool Scheduler::CanEverFit(int64_t tokens) const {
  return FitsInto(cache_->BlocksFor(tokens), *cache_, cache_->num_potential());
}

void Scheduler::Add(Sequence* sequence) {
  CHECK(!sequence->tokens.empty());
  Enqueue(sequence);
}

// A sequence that waits does not grow.
void Scheduler::Enqueue(Sequence* sequence) {
  CHECK(waiting_.insert(sequence).second);
  waiting_tokens_ += sequence->tokens.size();
}

bool Scheduler::Dequeue(Sequence* sequence) {
  if (waiting_.erase(sequence) == 0) return false;
  waiting_tokens_ -= sequence->tokens.size();
  return true;
}

void Scheduler::EnterRunning(Sequence* sequence) {
  running_.insert(std::upper_bound(running_.begin(), running_.end(), sequence, ServedBefore()), sequence);
  num_running_groups_ += sequence->group == nullptr || sequence->group->running++ == 0;
}

// Ignores one that does not run.
void Scheduler::LeaveRunning(Sequence* sequence) {
  const auto running = std::lower_bound(running_.begin(), running_.end(), sequence, ServedBefore());
  if (running == running_.end() || *running != sequence) return;
  running_.erase(running);
  num_running_groups_ -= sequence->group == nullptr || --sequence->group->running == 0;
}

void Scheduler::Remove(Sequence* sequence) {
  if (!Dequeue(sequence)) LeaveRunning(sequence);
  cache_->Release(sequence->blocks);
  sequence->computed_tokens = 0;
}

// It comes back for what it had.
void Scheduler::WaitAgain(Sequence* sequence) {
  cache_->ReleaseForNow(sequence->blocks);
  Remove(sequence);
  sequence->owned_only = false;
  sequence->waits_for_room = false;
  Enqueue(sequence);
}

StepPlan Scheduler::Plan() {
  Step step{.plan = {}, .budget_tokens = options_.max_num_batched_tokens};
  step.plan.chunks.reserve(running_.size());
  for (Sequence* sequence : running_) {
    AttachMore(*sequence);
    cache_->NoteWish(BlocksOf(*sequence));  // leases that it was admitted with may have gone since
  }
  TakeTurn(step);
  PlanRunning(step);
  if (step.plan.preempted.empty() || running_.empty()) Admit(step);
  if (step.turn == Turn::kOthers) {
    step.turn = Turn::kReaders;
    const int64_t readers = std::min(step.readers, num_running());  // some may have given way
    step.plan.leaves_out_readers = step.used_tokens + readers > MostTouchingRegions();
    if (!step.plan.leaves_out_readers) PlanRunning(step);
  }
  CHECK(!step.plan.chunks.empty() || step.plan.waits || !has_work()) << "the sequence served first does not advance";
  leaves_out_readers_ = step.plan.leaves_out_readers;
  return std::move(step.plan);
}

// They take turns where steps without leases would be so much longer that it counts: each step costs more than its tokens.
constexpr int64_t kMuchLonger = 2;

void Scheduler::TakeTurn(Step& step) const {
  if (tokens_touching_regions_ == 0 || cache_->leased_in().used == 0) return;
  int64_t wanted = waiting_.empty() ? 0 : step.budget_tokens;
  for (const Sequence* sequence : running_) {
    wanted += sequence->remaining_tokens() == 1 ? 1 : Wanted(step, *sequence);
  }
  if (std::min(wanted, step.budget_tokens) <= MostTouchingRegions()) return;
  int64_t readers = 0, decodes = 0, reading_decodes = 0;
  for (Sequence* sequence : running_) {
    sequence->reads_leases = sequence->leased_blocks.Follow(*cache_, sequence->blocks) > 0;
    const bool is_decode = sequence->remaining_tokens() == 1;
    readers += sequence->reads_leases;
    decodes += is_decode;
    reading_decodes += sequence->reads_leases && is_decode;
  }
  const bool others_prefill = !waiting_.empty() || num_running() - readers > decodes - reading_decodes;
  const int64_t beside = decodes > 0
                             ? decodes + PromptTokensBesideDecodes(prompt_tokens_beside_decodes_, reading_decodes > 0)
                             : step.budget_tokens;
  const int64_t most_others = std::min(beside, step.budget_tokens);
  if (readers == 0 || !others_prefill || most_others <= kMuchLonger * MostTouchingRegions()) return;
  step.turn = left_out_readers_ ? Turn::kReadersFirst : Turn::kOthers;
  step.readers = readers;
  step.readers_decode = reading_decodes > 0;
}

// Where the last to be asked gave its blocks back for want of memory, those asked before it can have them in this step.
void Scheduler::PlanRunning(Step& step) {
  size_t gave_way = 0;
  do {
    gave_way = step.plan.preempted.size();
    step.without_room = nullptr;
    for (Sequence* sequence : running_) sequence->waits_for_room &= !step.MayRun(*sequence);
    if (cache_->has_tiers()) BeginAcrossTiers(step);
    PlanDecodes(step);
    LimitPrompts(step);
    if (step.turn == Turn::kReaders || step.turn == Turn::kReadersFirst) PlanPrefills(step, /*readers=*/true);
    if (step.turn != Turn::kReaders) PlanPrefills(step, /*readers=*/false);
  } while (step.plan.chunks.empty() && step.plan.preempted.size() > gave_way);
}

void Scheduler::LimitPrompts(Step& step) const {
  if (step.used_tokens == 0 && !step.readers_decode) return;
  const bool on_leases = step.turn != Turn::kOthers && cache_->leased_in().used > 0;
  step.Limit(step.used_tokens +
             PromptTokensBesideDecodes(on_leases ? prompt_tokens_on_leases_ : prompt_tokens_beside_decodes_,
                                       step.readers_decode));
}

// `in_turns`: the decodes have a token in two steps, which together may take the time of one.
int64_t Scheduler::PromptTokensBesideDecodes(std::optional<int64_t> limit, bool in_turns) const {
  if (!limit) return options_.max_num_batched_tokens;
  return in_turns ? std::max<int64_t>(1, *limit / 2) : *limit;
}

// What it had before a loss is not cached tokens that it finds.
void Scheduler::AttachMore(Sequence& sequence) {
  if (sequence.remaining_tokens() == 1) return;
  const kv::SequenceBlocks::Attached more =
      cache_->AttachMore(sequence.blocks, sequence.tokens, sequence.computed_tokens);
  sequence.computed_tokens += more.tokens;
  const int64_t found = sequence.computed_tokens - sequence.furthest_tokens;
  if (more.tokens == 0 || found <= 0) return;
  sequence.furthest_tokens = sequence.computed_tokens;
  *sequence.cached_tokens += found;
  sequence.cached_leased_tokens += std::min(found, more.leased_tokens);
}

// Room that comes free while others wait for theirs must reach the sequence served first, so that one asks first.
void Scheduler::BeginAcrossTiers(Step& step) {
  // Who holds blocks, runs.
  if (tokens_touching_regions_ > 0 && cache_->leased_in().used > 0 && step.turn != Turn::kOthers) {
    step.Limit(MostTouchingRegions());
  }
  if (running_.empty()) return;
  Sequence* first = running_.front();
  if (!MakeRoomFor(step, first)) step.without_room = first;
}

// One token is left for the sequence served first where that one is still in its prefill.
void Scheduler::PlanDecodes(Step& step) {
  const Sequence* first = running_.empty() ? nullptr : running_.front();
  const int64_t kept = first != nullptr && first->remaining_tokens() > 1 && step.MayRun(*first) ? 1 : 0;
  for (size_t i = 0; i < running_.size() && step.budget_tokens > kept;) {
    Sequence* sequence = running_[i];
    const bool decodes = sequence->remaining_tokens() == 1 && step.MayRun(*sequence);
    if (decodes && MakeRoomFor(step, sequence)) AddChunk(step, sequence, 1);
    i += i < running_.size() && running_[i] == sequence;  // it may have given up
  }
}

// A chunk is cut to the blocks that are left; others give way only where not even one token fits. Who waits and is more
// urgent comes before a prompt, which could take all steps until its end.
void Scheduler::PlanPrefills(Step& step, bool readers) {
  std::optional<int32_t> admitted_above;  // who was, has its chunk, and runs before the one that is looked at
  for (size_t i = 0; i < running_.size() && step.budget_tokens > 0;) {
    Sequence* sequence = running_[i];
    const bool prefills = sequence->remaining_tokens() > 1 && step.Reads(*sequence) == readers;
    if (prefills && !readers && admitted_above != sequence->priority) {
      admitted_above = sequence->priority;
      Admit(step, admitted_above);
      i = std::lower_bound(running_.begin(), running_.end(), sequence, ServedBefore()) - running_.begin();
      continue;
    }
    if (prefills && MakeRoomFor(step, sequence)) {
      AddChunk(step, sequence, Fitting(*sequence, Wanted(step, *sequence)));
    }
    i += i < running_.size() && running_[i] == sequence;
  }
}

// Of any priority, or of one above. Nothing here changes who fits, and who gives way comes behind whom it makes room for.
void Scheduler::Admit(Step& step, std::optional<int32_t> above) {
  step.needs = {};
  const Sequence* displaces = nullptr;  // for whom others give way, since that is enough
  bool counted = false;
  for (auto next = waiting_.begin(); next != waiting_.end() && !(above && (*next)->priority <= *above);) {
    Sequence* sequence = *next;
    if (!Fits(*sequence)) {  // asks for memory, while others take the whole step, too
      step.plan.waits = true;
      cache_->NoteWish(BlocksOf(*sequence));
      ++next;
      continue;
    }
    if (step.budget_tokens <= 0) return;
    if (!std::exchange(counted, true)) {
      for (const Sequence* running : running_) Count(step.needs, *running, +1);
    }
    if (!HasPlaceFor(step.needs, *sequence)) {
      if (!MayDisplaceFor(step.needs, *sequence, /*began=*/displaces == sequence)) return;
      displaces = sequence;
      Count(step.needs, *running_.back(), -1);
      GiveWay(step, running_.back());
    } else {
      ++next;
      if (!LimitFor(step, *sequence) || !Start(step, sequence)) return;
    }
  }
}

// False: what it finds in the cache lies in leases, and the step has all the tokens that may go beside that.
bool Scheduler::LimitFor(Step& step, const Sequence& sequence) const {
  if (tokens_touching_regions_ == 0 || !cache_->has_tiers()) return true;
  const int64_t most = std::max(tokens_touching_regions_, num_running() + 1);
  if (most - step.used_tokens >= step.budget_tokens) return true;
  if (cache_->Measure(sequence.cache_salt, sequence.tokens, RunsFromOwned(sequence)).leased_blocks == 0) return true;
  step.Limit(most);
  return step.budget_tokens > 0;
}

// False: it runs, and waits for room.
bool Scheduler::Start(Step& step, Sequence* sequence) {
  Dequeue(sequence);
  EnterRunning(sequence);
  sequence->owned_only = RunsFromOwned(*sequence);
  sequence->reads_leases = false;  // whatever it finds, it has its turn in this step
  const kv::SequenceBlocks::Attached cached =
      cache_->Attach(sequence->blocks, sequence->cache_salt, sequence->tokens, sequence->owned_only);
  sequence->computed_tokens = cached.tokens;
  if (!sequence->cached_tokens) {
    sequence->cached_tokens = sequence->furthest_tokens = cached.tokens;
    sequence->cached_leased_tokens = cached.leased_tokens;
    step.plan.admitted.push_back(sequence);
  }
  const int64_t num_tokens = Fitting(*sequence, Wanted(step, *sequence));
  if (num_tokens > 0) {
    AddChunk(step, sequence, num_tokens);
  } else {
    step.plan.waits = sequence->waits_for_room = true;
  }
  Count(step.needs, *sequence, +1);
  return num_tokens > 0;
}

void Scheduler::AddChunk(Step& step, Sequence* sequence, int64_t num_tokens) {
  CHECK_GT(num_tokens, 0);
  const int64_t tokens = sequence->computed_tokens + num_tokens;
  CHECK(cache_->Grow(sequence->blocks, tokens, tokens) == kv::Growth::kDone);
  sequence->waits_for_room = false;
  step.plan.chunks.push_back({sequence, num_tokens, num_tokens == sequence->remaining_tokens()});
  step.Spend(num_tokens);
}

// Makes the sequence's blocks cover a token more; those served after it give way. False: it has to wait for those
// before it, for room on its way, or for memory.
bool Scheduler::MakeRoomFor(Step& step, Sequence* sequence) {
  if (sequence == step.without_room) return false;
  const int64_t computed = sequence->computed_tokens;
  for (;;) {
    switch (cache_->Grow(sequence->blocks, computed + 1, computed + Wanted(step, *sequence))) {
      case kv::Growth::kDone:
        return true;
      case kv::Growth::kWait:
        step.plan.waits = sequence->waits_for_room = true;
        return false;
      case kv::Growth::kNoRoom:
        break;
    }
    if (!Fits(*sequence) || num_running() == 1) {
      GiveWay(step, sequence);
      sequence->lost_tokens = sequence->furthest_tokens;
      step.plan.waits = true;
      return false;
    }
    if (running_.back() == sequence) return false;
    GiveWay(step, running_.back());
  }
}

// The victim may already have a part in this step, or have been admitted by it.
void Scheduler::GiveWay(Step& step, Sequence* victim) {
  std::erase_if(step.plan.chunks, [&](const Chunk& chunk) {
    if (chunk.sequence != victim) return false;
    step.Spend(-chunk.num_tokens);
    return true;
  });
  WaitAgain(victim);
  victim->lost_tokens = 0;
  step.plan.preempted.push_back(victim);
}

// One block more than its tokens need, so that its first output does not preempt somebody. Blocks that it shares with
// running sequences cost nothing; idle ones that it would take stop being available. To measure what it shares in own
// memory is a look at all of its blocks, for where the answer hangs on that.
bool Scheduler::HasPlaceFor(const Needs& running, Sequence& sequence, int64_t more_available) const {
  if (running.sequences >= options_.max_num_seqs) return false;
  if (running.sequences == 0) return true;
  const bool from_owned = RunsFromOwned(sequence);
  if (from_owned && BlocksOf(sequence) + 1 + running.owned_blocks > cache_->num_usable_local()) return false;
  const int64_t lacking =
      MissingBlocks(sequence) + 1 + running.missing_blocks - cache_->num_available() - more_available;
  if (lacking <= 0) return true;
  if (lacking > cache_->BlocksInUse(sequence.prefix_in_use, sequence.cache_salt, sequence.tokens)) return false;
  if (!from_owned) return true;
  const kv::PrefixTree::Length cached = cache_->Measure(sequence.cache_salt, sequence.tokens, /*local_only=*/true);
  return lacking <= cached.blocks - cached.idle_blocks;
}

// Nobody gives way in vain: without the less urgent it must have a place. (What it shares with those alone counts twice.)
// `began`: that was so, and the first of them have given way.
bool Scheduler::MayDisplaceFor(Needs running, Sequence& sequence, bool began) const {
  std::vector<const kv::BlockTable*> less_urgent;
  int64_t at_most = 0;  // shared ones once for each
  for (auto last = running_.rbegin(); last != running_.rend() && (*last)->priority < sequence.priority; ++last) {
    Count(running, **last, -1);
    less_urgent.push_back(&(*last)->blocks);
    at_most += (*last)->blocks.size();
  }
  return !less_urgent.empty() && HasPlaceFor(running, sequence, at_most) &&
         (began || HasPlaceFor(running, sequence, cache_->HeldByNobodyElse(less_urgent)));
}

void Scheduler::Count(Needs& needs, const Sequence& sequence, int64_t sign) const {
  needs.sequences += sign;
  needs.missing_blocks += sign * MissingBlocks(sequence);
  if (sequence.owned_only) needs.owned_blocks += sign * BlocksOf(sequence);
}

bool Scheduler::RunsFromOwned(const Sequence& sequence) const {
  return sequence.losses >= kMaxLosses && BlocksOf(sequence) <= cache_->num_usable_local();
}

// Alone, at present.
bool Scheduler::Fits(const Sequence& sequence) const {
  const int64_t blocks = BlocksOf(sequence);
  return FitsInto(blocks, *cache_, sequence.owned_only ? cache_->num_usable_local() : cache_->num_usable());
}

bool Scheduler::NeedsLeases(int64_t tokens) const { return cache_->BlocksFor(tokens) > cache_->num_usable_local(); }

bool Scheduler::Starves(const Sequence& sequence) const {
  return !Fits(sequence) || (sequence.waits_for_room && NeedsLeases(sequence.tokens.size()));
}

bool Scheduler::IsExhausted(const Sequence& sequence) const {
  return sequence.again_tokens > kMaxAgain * sequence.tokens.size() && NeedsLeases(sequence.tokens.size());
}

// Of the budget, what the sequence would take.
int64_t Scheduler::Wanted(const Step& step, const Sequence& sequence) const {
  return cache_->UnknownTokens(sequence.blocks, sequence.tokens, sequence.computed_tokens, step.budget_tokens);
}

// Of the next `num_tokens` tokens, those for which there are blocks, or can be at once.
int64_t Scheduler::Fitting(const Sequence& sequence, int64_t num_tokens) const {
  const int64_t held = sequence.blocks.size();
  const int64_t missing = cache_->BlocksFor(sequence.computed_tokens + num_tokens) - held;
  if (missing <= 0) return num_tokens;
  const int64_t blocks = held + cache_->Obtain(missing);
  return std::min(num_tokens, blocks * cache_->block_tokens() - sequence.computed_tokens);
}

int64_t Scheduler::BlocksOf(const Sequence& sequence) const { return cache_->BlocksFor(sequence.tokens.size()); }

int64_t Scheduler::MissingBlocks(const Sequence& sequence) const {
  return std::max<int64_t>(0, BlocksOf(sequence) - sequence.blocks.size());
}

int64_t Scheduler::missing_blocks() const {
  int64_t blocks = 0;
  for (const Sequence* sequence : running_) blocks += MissingBlocks(*sequence);
  return blocks;
}

bool Scheduler::is_running(const Sequence* sequence) const {
  return std::binary_search(running_.begin(), running_.end(), sequence, ServedBefore());
}

}  // namespace swiftcache::engine::sched
