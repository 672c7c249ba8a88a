// SPDX-License-Identifier: Apache-2.0
#include "engine/exec/step_loop.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/base/status_macros.h"
#include "common/log/log.h"
#include "engine/backend/device.h"
#include "engine/exec/engine_memory.h"

namespace swiftcache::engine::exec {
namespace {

constexpr int64_t kChunkOnLeases = 256;  // for which spilling keeps room free
// What a layer of a step that reads leases may take of the time within which donors want them back. What the step may
// take at all then is twice as much (Urgency::kStepDivisor), so that it can be cut between two layers in time.
constexpr int kLayerDivisor = 8;
// What reads leases is half as long after each step that was cut short (once it has ended, if it goes on), and twice after
// each that was not: then most steps fit between two revocations, and the one that runs to its end whatever happens is
// short.
constexpr int64_t kLeastOnLeases = sched::StepTimes::kLeastTokens;
// Nothing wakes a loop whose plan was empty because memory is on its way, if that way ends in silence.
constexpr absl::Duration kPatience = absl::Milliseconds(20);

int64_t MaxOnLeases(const EngineOptions& options) {
  const int64_t most = options.max_num_batched_tokens;
  return options.max_tokens_on_leases > 0 ? std::min(options.max_tokens_on_leases, most) : most;
}

sched::StepLoad LoadOf(const sched::StepPlan& plan) {
  sched::StepLoad load;
  for (const sched::Chunk& chunk : plan.chunks) {
    chunk.num_tokens == 1 ? ++load.decodes : load.prompt_tokens += chunk.num_tokens;
  }
  return load;
}

}  // namespace

StepLoop::StepLoop(const EngineOptions& options, const backend::KvLayout& layout, std::unique_ptr<models::Model> model,
                   std::unique_ptr<backend::KvMemory> memory, const std::optional<LoopSharing>& sharing,
                   const Clock& clock, EngineMetrics* metrics, LoopObserver* observer)
    : options_(options),
      layout_(layout),
      model_(std::move(model)),
      memory_(std::move(memory)),
      own_(memory_.get(), layout.block_bytes()),
      clock_(clock),
      metrics_(metrics),
      observer_(observer),
      cache_({.num_blocks = memory_->bytes() / layout.block_bytes(),
              .block_tokens = options.block_tokens,
              .enable_prefix_caching = options.enable_prefix_caching,
              .may_borrow = options.may_borrow(),
              .leases_are_mapped = !sharing || sharing->transport->maps(),
              .measures_reuse = sharing.has_value(),
              .max_chunk_tokens = std::min(kChunkOnLeases, MaxOnLeases(options))}),
      scheduler_({.max_num_seqs = options.max_num_seqs,
                  .max_num_batched_tokens = options.max_num_batched_tokens,
                  .max_tokens_touching_regions = MaxOnLeases(options)},
                 &cache_),
      sharing_(sharing ? MakeSharing(*sharing) : nullptr),
      streamer_(sharing ? MakeStreamer(*sharing) : nullptr),
      decode_bound_(MakeDecodeBound(sharing)),
      forward_(model_.get(), &own_, &cache_,
               sharing ? std::optional(Forward::Leases{.borrowing = &sharing_->borrowing(),
                                                       .urgency = sharing->urgency,
                                                       .streamer = streamer_.get(),
                                                       .clock = &clock_})
                       : std::nullopt),
      meter_(clock, metrics, sharing ? sharing->transport : nullptr, streamer_.get()),
      live_(options.block_tokens),
      starvation_(options.lease_patience, &clock, &scheduler_, &live_),
      tokens_on_leases_(MaxOnLeases(options)) {
  observer_->OnLoad(load());
}

std::unique_ptr<Sharing> StepLoop::MakeSharing(const LoopSharing& parts) {
  const Borrowing::Options borrowing{.num_blocks = cache_.local().total,
                                     .block_tokens = options_.block_tokens,
                                     .streamed_layers = Streams(parts) ? layout_.num_layers : 0,
                                     .streams_all = StreamsAll(parts),
                                     .revoke_deadline = options_.revoke_deadline};
  return std::make_unique<Sharing>(
      Sharing::Options{.borrowing = borrowing, .scrub_on_return = options_.scrub_on_return},
      Sharing::Dependencies{.own = &own_,
                            .cache = &cache_,
                            .scheduler = &scheduler_,
                            .transport = parts.transport,
                            .coordinator = parts.coordinator,
                            .urgency = parts.urgency,
                            .clock = &clock_,
                            .metrics = metrics_});
}

bool StepLoop::StreamsAll(const LoopSharing& parts) const {
  return options_.stream == StreamMode::kLsc || !parts.transport->maps();
}

bool StepLoop::Streams(const LoopSharing& parts) const {
  return StreamsAll(parts) || (options_.stream == StreamMode::kAuto && parts.transport->measures_links());
}

std::unique_ptr<LayerStreamer> StepLoop::MakeStreamer(const LoopSharing& parts) const {
  if (!Streams(parts)) return nullptr;
  return std::make_unique<LayerStreamer>(layout_, memory_->base(), parts.transport, &clock_);
}

DecodeBound StepLoop::MakeDecodeBound(const std::optional<LoopSharing>& parts) const {
  return DecodeBound({.max_tpot = options_.max_tpot,
                      .own_blocks = cache_.local().total,
                      .block_tokens = options_.block_tokens,
                      .block_bytes = layout_.block_bytes(),
                      .max_model_len_tokens = WantedModelLen(options_, model_->geometry()),
                      .in_place = !streamer_},
                     parts ? parts->transport : nullptr);
}

absl::Time StepLoop::Turn() {
  if (has_work()) {
    if (Step()) return absl::InfinitePast();
    if (starvation_.any_starves()) turns_starved_.fetch_add(1, std::memory_order_relaxed);
  }
  ServeBetweenSteps();
  return has_work() ? std::min(NextWakeup(), clock_.Now() + kPatience) : NextWakeup();
}

bool StepLoop::Step() {
  meter_.Begin();
  if (sharing_) {
    sharing_->borrowing().FinishFetches();
    sharing_->borrowing().FinishRegions();
    AdmitParked();
    EndStarved();
  }
  if (options_.target_itl > absl::ZeroDuration()) {
    scheduler_.LimitPromptTokensBesideDecodes(pace_.times().PromptTokensWithin(options_.target_itl),
                                              leased_pace_.times().PromptTokensWithin(options_.target_itl));
  }
  if (sharing_) {
    int64_t tokens = TokensOnLeases();
    if (cache_.leased_in().used > 0 && leased_pace_.MeasuresNext(TimeOnLeases())) {
      tokens = std::min(tokens, kLeastOnLeases);
    }
    scheduler_.LimitTokensTouchingRegions(tokens);
  }
  const sched::StepPlan plan = Plan();
  NoteStarts(plan);
  bool computes = sharing_ ? ServeLeases(plan) : !plan.chunks.empty();
  if (computes) {
    forward_.Gather(plan);
    computes = !sharing_ || sharing_->borrowing().BeginReads(forward_.leases_read(), StakeOf(plan));
  }
  if (computes) RunStep(plan);
  Publish();
  return computes;
}

// A step that was cut short goes on if it can.
sched::StepPlan StepLoop::Plan() {
  if (!kept_.empty()) {
    if (std::optional<sched::StepPlan> again = scheduler_.PlanAgain(kept_)) return *std::move(again);
    kept_.clear();
    forward_.DropKept();
  }
  return scheduler_.Plan();
}

// What leases ask for between plan and forward pass. False: nothing is to be computed before memory is back.
bool StepLoop::ServeLeases(const sched::StepPlan& plan) {
  SizeLayerStream();
  sharing_->lending().StateNeed(scheduler_.missing_blocks());
  if (plan.chunks.empty() || sharing_->lending().ShouldDefer(plan)) return false;
  if (HoldsBack() || sharing_->borrowing().LeaveSilentDonors()) return false;
  sharing_->Advance(TokensNotRunning(), live_.longest_tokens());
  return true;
}

// What is being saved is not read meanwhile; for no longer than a revocation takes, or donors that go on revoking would
// let no step begin.
bool StepLoop::HoldsBack() {
  return held_back_.Goes(sharing_->borrowing().saves_blocks(), clock_.Now(), options_.revoke_deadline);
}

// Two steps in a row may be cut short for leases that are wanted back, more if each goes on where the one before was cut;
// the next one runs to its end, or until all that it reads is lost. Then the sequences have lost something, which is
// counted: there is progress, or an end, whatever donors do.
constexpr int64_t kMaxCutShortInARow = 2, kMaxCutShortOfOne = 8;

bool StepLoop::MayCutShort() const {
  return sharing_ != nullptr && cut_short_in_a_row_ < (forward_.goes_on() ? kMaxCutShortOfOne : kMaxCutShortInARow);
}

// A step that goes on where it was cut loses the time of the copies, which is less than to compute again what they save.
// Where its layers are so long that the copies would begin too late, or it would begin anew, it counts whole.
Borrowing::Stake StepLoop::StakeOf(const sched::StepPlan& plan) const {
  if (!MayCutShort()) return {.tokens = std::numeric_limits<int64_t>::max()};
  const bool reads = !forward_.leases_read().empty();
  sched::StepLoad load = LoadOf(plan);
  if (reads) load.decodes = std::max<int64_t>(load.decodes, 1);  // reading takes its time without any, too
  const sched::StepTimes& times = reads ? leased_pace_.times() : pace_.times();
  const bool in_time = times.Of(load) <= options_.revoke_deadline * layout_.num_layers;
  return {.tokens = forward_.would_be_kept() && in_time ? 0 : times.InPromptTokens(load),
          .leaves_out_readers = plan.leaves_out_readers};
}

void StepLoop::RunStep(const sched::StepPlan& plan) {
  held_back_.End();
  kept_.clear();
  absl::StatusOr<Forward::Outcome> outcome = forward_.Run(MayCutShort());
  if (!outcome.ok()) {
    if (sharing_) sharing_->borrowing().EndReads({});
    if (backend::IsDeviceLost(outcome.status())) {
      LoseDevice(outcome.status());
    } else {
      FailStep(plan, outcome.status());
    }
    return;
  }
  ++steps_;
  const absl::Duration time = meter_.Computed(
      plan,
      {.in_place_bytes = forward_.in_place_bytes(), .cut_short = outcome->cut_short, .goes_on = outcome->goes_on});
  if (!outcome->cut_short || !outcome->lost.empty()) scheduler_.NoteComputed(plan);
  if (sharing_) sharing_->borrowing().EndReads(outcome->lost);
  cut_short_in_a_row_ = outcome->cut_short ? cut_short_in_a_row_ + 1 : 0;
  AdaptTokensOnLeases(plan, *outcome);
  if (outcome->is_kept) {
    for (const sched::Chunk& chunk : plan.chunks) {
      kept_.push_back({chunk.sequence->id, chunk.sequence->computed_tokens, chunk.num_tokens});
    }
  }
  if (outcome->cut_short) return;
  if (forward_.leases_read().empty()) {
    pace_.Note(LoadOf(plan), time);
  } else {
    leased_pace_.Note(LoadOf(plan), time);
  }
  scheduler_.Commit(plan);
  TakeTokens(plan, std::move(outcome->tokens));
}

// A step that goes on where it was cut is to be the same: it is the next one that is shorter.
void StepLoop::AdaptTokensOnLeases(const sched::StepPlan& plan, const Forward::Outcome& outcome) {
  if (plan.leaves_out_readers) return;
  if (outcome.is_kept) {
    kept_for_leases_ |= outcome.cut_for_what_it_reads;
    return;
  }
  const bool halve = std::exchange(kept_for_leases_, false) || outcome.cut_for_what_it_reads;
  if (outcome.cut_short && !halve) return;
  const int64_t tokens = halve ? std::max(TokensOnLeases() / 2, kLeastOnLeases) : 2 * tokens_on_leases_;
  tokens_on_leases_ = std::min(tokens, MaxOnLeases(options_));
}

// So many that a layer of the step takes its part of the deadline, as far as one can tell.
int64_t StepLoop::TokensOnLeases() const {
  return std::min(tokens_on_leases_, scheduler_.num_running() + leased_pace_.PromptTokensAbout(TimeOnLeases()));
}

absl::Duration StepLoop::TimeOnLeases() const { return options_.revoke_deadline / kLayerDivisor * layout_.num_layers; }

void StepLoop::Handle(const coordinator::LoopMessage& message) {
  if (!sharing_) return;
  const int64_t leased_blocks = cache_.leased_in().total;
  sharing_->Handle(message);
  if (cache_.leased_in().total != leased_blocks) SizeLayerStream();  // any message may be a lease's last
  AdmitParked();
}

void StepLoop::ServeBetweenSteps() {
  if (!sharing_) return;
  sharing_->borrowing().FinishRegions();
  if (!sharing_->borrowing().saves_blocks()) held_back_.End();  // nobody may want a step
  SizeLayerStream();                                            // the last step, or this, may have ended the last lease
  AdmitParked();
  EndStarved();
  sharing_->Advance(TokensNotRunning(), live_.longest_tokens());
  sharing_->lending().AwaitClears();
  Publish();
}

absl::Time StepLoop::NextWakeup() const {
  if (!sharing_) return absl::InfiniteFuture();
  return std::min(sharing_->NextWakeup(), starvation_.next_look());
}

void StepLoop::SizeLayerStream() {
  if (!streamer_) return;
  const int64_t wanted = sharing_->borrowing().StreamBlocks(sharing_->borrowing().streamed_blocks());
  const auto reserved = static_cast<int64_t>(cache_.reserved().size());
  if (wanted < reserved) cache_.ReleaseReserved(reserved - wanted);
  // The rest as memory comes free. Until then some leased blocks are read where they lie; where they are not mapped,
  // none are put there that have no slot, and what is idle makes way.
  const kv::PlaceCounts local = cache_.local();
  const int64_t room = local.free + (sharing_->borrowing().leases_are_mapped() ? 0 : local.cached);
  (void)cache_.ReserveLocal(std::max<int64_t>(0, std::min(wanted - reserved, room / 2)));
  if (static_cast<int64_t>(cache_.reserved().size()) == reserved) return;
  streamer_->SetSlots(cache_.reserved());
  if (sharing_->borrowing().leases_are_mapped()) return;
  cache_.SetStreamCapacity(std::min(streamer_->capacity(), sharing_->borrowing().most_streamed_blocks()));
}

void StepLoop::NoteStarts(const sched::StepPlan& plan) {
  preemptions_ += static_cast<int64_t>(plan.preempted.size());
  metrics_->Preempted(static_cast<int64_t>(plan.preempted.size()));
  for (sched::Sequence* sequence : plan.admitted) {
    LiveRequest& request = *AsContinuation(*sequence).request;
    if (request.start_time) continue;
    request.start_time = clock_.Now();
    metrics_->Started(*request.start_time - request.arrival_time);
    observer_->OnStarted(request);
  }
  if (!plan.admitted.empty() || !plan.preempted.empty()) observer_->OnLoad(load());  // a step can last seconds
}

EngineLoad StepLoop::load() const {
  const kv::PlaceCounts local = cache_.local(), leased = cache_.leased_in();
  return {.running_requests = scheduler_.num_running_groups(),
          .waiting_requests = live_.size() - scheduler_.num_running_groups(),
          .kv_blocks_total = local.total,
          .kv_blocks_used = local.used,
          .kv_blocks_cached = local.cached,
          .kv_blocks_free = local.free,
          .kv_blocks_leased_out = cache_.num_leased_out(),
          .kv_blocks_withheld = cache_.num_withheld(),
          .kv_blocks_slots = static_cast<int64_t>(cache_.reserved().size()),
          .kv_blocks_leased_in = leased.total,
          .kv_blocks_leased_in_used = leased.used + leased.cached,
          .kv_blocks_leased_in_held = leased.used,
          .decode_bound =
              decode_bound_.OfLongest(cache_.num_usable_local(), cache_.num_usable() - cache_.num_usable_local()),
          .steps_total = steps_,
          .preemptions_total = preemptions_,
          .evicted_blocks_total = cache_.evicted_total(),
          .prompt_tokens_computed = prompt_computed_,
          .prompt_tokens_local = prompt_local_,
          .prompt_tokens_donor = prompt_donor_,
          .sharing = cache_.worth()};
}

absl::Status StepLoop::CheckInvariants() const {
  int64_t sequences = 0;
  for (const auto& [id, request] : live_.by_id()) {
    int64_t running = 0;
    for (const auto& continuation : request->continuations) running += scheduler_.is_running(continuation.get());
    if (running != request->group.running) {
      return absl::InternalError(
          absl::StrCat(id, " has ", running, " running continuations, counted ", request->group.running));
    }
    sequences += static_cast<int64_t>(request->continuations.size()) - request->num_done - request->parked;
  }
  if (sequences != scheduler_.num_running() + scheduler_.num_waiting()) {
    return absl::InternalError(absl::StrCat(sequences, " sequences are live, the scheduler has ",
                                            scheduler_.num_running(), " running and ", scheduler_.num_waiting(),
                                            " waiting"));
  }
  RETURN_IF_ERROR(live_.CheckInvariants());
  if (sharing_) RETURN_IF_ERROR(sharing_->borrowing().CheckInvariants());
  return scheduler_.CheckInvariants();
}

}  // namespace swiftcache::engine::exec
