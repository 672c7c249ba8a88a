// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/worth/engine.h"

#include <algorithm>
#include <utility>

namespace swiftcache::sim::worth {

using engine::kv::Move;
using engine::lease::PlacesOf;
using engine::sched::Chunk;
using engine::sched::StepPlan;

namespace {

constexpr int64_t kMovesToClear = 64, kMovesToDrain = 256;  // of one extent
constexpr int64_t kAnswerPart = Engine::kBlockTokens;       // tokens that are decoded as one

}  // namespace

Engine::Engine(const Options& options, const Load& load, Neighbours& neighbours)
    : options_(options),
      load_(load),
      neighbours_(neighbours),
      cache_({.num_blocks = options.num_blocks,
              .block_tokens = kBlockTokens,
              .may_borrow = true,
              .measures_reuse = true,
              .max_chunk_tokens = 256}),
      scheduler_({.max_num_seqs = 64, .max_num_batched_tokens = 512, .max_tokens_touching_regions = 256}, &cache_),
      window_({.window = options.window, .num_blocks = options.num_blocks}) {}

void Engine::RunUntil(double now) {
  const std::vector<Request>& requests = load_.requests;
  for (; next_request_ < requests.size() && requests[next_request_].at <= now; ++next_request_) {
    Arrive(requests[next_request_], now);
  }
  free_at_ = std::max(free_at_, now);
  const bool was_busy = busy();
  for (int fruitless = 0; free_at_ <= now && busy() && fruitless < 8;) fruitless = Step() ? 0 : fruitless + 1;
  if (was_busy) idle_since_ = now;
  Advance();
}

void Engine::Arrive(const Request& request, double now) {
  if (jobs_.contains(request.conversation)) {
    waiting_[request.conversation].push_back(&request);
  } else {
    Submit(request, now);
  }
}

void Engine::Submit(const Request& request, double now) {
  auto job = std::make_unique<Job>();
  job->id = engine::sched::SequenceId(++last_id_);
  job->request = &request;
  job->arrived = now;
  if (!busy() && now - idle_since_ >= 60) woke_ = now;
  job->wakes = now - woke_ < kWaking;
  job->tokens = engine::sched::TokenList(TokensOf(load_, request.conversation, request.prompt_tokens));
  job->prompt_tokens = request.prompt_tokens;
  outcome_.prompt_tokens += request.prompt_tokens;
  scheduler_.Add(job.get());
  jobs_[request.conversation] = std::move(job);
}

// False: nothing was computed.
bool Engine::Step() {
  const StepPlan plan = scheduler_.Plan();
  if (const int64_t need = cache_.TakeNeed(); need > 0) {
    neighbours_.TakeBack(*this, std::max(need, scheduler_.missing_blocks() - cache_.local().free));
  }
  if (!plan.chunks.empty()) Compute(plan);
  Advance();
  return !plan.chunks.empty();
}

void Engine::Compute(const StepPlan& plan) {
  int64_t prefilled = 0;
  bool decodes = false;
  for (const Chunk& chunk : plan.chunks) {
    auto& job = static_cast<Job&>(*chunk.sequence);
    if (job.blocks.size() == 0) continue;  // its lease was taken back since the plan
    Count(job, chunk.num_tokens);
    const bool decode = job.computed_tokens >= job.prompt_tokens;
    decodes |= decode;
    prefilled += decode ? 0 : chunk.num_tokens;
  }
  free_at_ += static_cast<double>(prefilled) * options_.prefill_seconds;
  if (decodes) free_at_ += static_cast<double>(kAnswerPart) * options_.decode_seconds;
  scheduler_.NoteComputed(plan);
  scheduler_.Commit(plan);
  for (const Chunk& chunk : plan.chunks) {
    auto& job = static_cast<Job&>(*chunk.sequence);
    if (job.remaining_tokens() == 0) Answer(job);
  }
}

void Engine::Count(const Job& job, int64_t tokens) {
  int64_t& known = known_[job.request->conversation];
  const int64_t begin = job.computed_tokens, end = begin + tokens;
  const int64_t system = std::min(load_.system_tokens, known_[0]);
  outcome_.computed += tokens;
  outcome_.again += std::max<int64_t>(0, std::min(end, std::max(known, system)) - begin);
  known = std::max(known, end);
  known_[0] = std::max(known_[0], std::min(end, load_.system_tokens));
}

void Engine::Answer(Job& job) {
  if (job.answered == 0) {
    outcome_.found += job.cached_tokens.value_or(0);
    if (job.wakes) outcome_.waking.push_back(free_at_ - job.arrived);
  }
  const int64_t conversation = job.request->conversation;
  if (job.answered < job.request->answer_tokens) {
    const int64_t more = std::min(kAnswerPart, job.request->answer_tokens - job.answered);
    const std::vector<int32_t> all = TokensOf(load_, conversation, job.tokens.size() + more);
    for (auto token = all.end() - more; token != all.end(); ++token) job.tokens.push_back(*token);
    job.answered += more;
    return;
  }
  scheduler_.Remove(&job);
  jobs_.erase(conversation);
  std::deque<const Request*>& next = waiting_[conversation];
  if (next.empty()) return;
  Submit(*next.front(), free_at_);
  next.pop_front();
}

// As engine/exec/sharing.cc does, with copies that are done at once.
void Engine::Advance() {
  (void)cache_.TakeDirty();
  for (const Move& move : cache_.TakeMoves(64, 64)) cache_.FinishMove(move);
  if (int64_t wish = cache_.TakeLeaseWish(0); wish > 0) {
    wish = std::max({wish, options_.num_blocks / 4, cache_.leased_in().total / 4});
    neighbours_.Wish(*this, wish);
  }
  int64_t longest = 0;
  for (const auto& [conversation, job] : jobs_) longest = std::max(longest, job->tokens.size());
  const absl::Time now = absl::UnixEpoch() + absl::Seconds(free_at_);
  const int64_t to_come = cache_.BlocksFor(scheduler_.waiting_tokens()) + scheduler_.missing_blocks();
  if (const auto window = window_.Follow(cache_, to_come, longest, now)) neighbours_.Report(*this, *window);
}

bool Engine::Clear(const engine::lease::Extent& extent) {
  const engine::kv::PlaceRun run = PlacesOf(extent);
  for (bool lent = false; !lent;) {
    const auto moves = cache_.ClearForLending(run, kMovesToClear);
    if (!moves) return false;
    for (const Move& move : *moves) cache_.FinishMove(move);
    lent = cache_.Lend(run);
  }
  return true;
}

void Engine::TakeBack(const engine::lease::Extent& extent) { cache_.TakeBack(PlacesOf(extent)); }

engine::kv::RegionId Engine::Use(int64_t blocks, const std::string& donor) { return cache_.AddRegion(blocks, donor); }

void Engine::GiveUp(engine::kv::RegionId region) {
  cache_.RegionDraining(region);
  for (int64_t moved = 0; moved < kMovesToDrain;) {
    const std::vector<Move> moves = cache_.PlanDrain(region, 8);
    if (moves.empty()) break;
    for (const Move& move : moves) cache_.FinishMove(move);
    moved += static_cast<int64_t>(moves.size());
  }
  const engine::kv::Tiers::Readers readers = cache_.ReadersOf(region);
  const std::vector<engine::sched::Sequence*> running(scheduler_.running().begin(), scheduler_.running().end());
  for (engine::sched::Sequence* sequence : running) {
    if (readers.Has(sequence->blocks)) scheduler_.Reset(sequence);
  }
  cache_.DropRegion(region);
}

void Engine::SetLendable(int64_t blocks) {
  cache_.SetPotentialRegionBlocks(cache_.leased_in().total + blocks, /*reserved=*/0, blocks);
}

}  // namespace swiftcache::sim::worth
