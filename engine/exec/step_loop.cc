// SPDX-License-Identifier: Apache-2.0
#include "engine/exec/step_loop.h"

#include <algorithm>
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
// What reads leases is half as long after each step that was cut short, and twice after each that was not: then most steps
// fit between two revocations, and the one that runs to its end whatever happens is short.
constexpr int64_t kLeastOnLeases = 16;

int64_t MaxOnLeases(const EngineOptions& options) {
  const int64_t most = options.max_num_batched_tokens;
  return options.max_tokens_on_leases > 0 ? std::min(options.max_tokens_on_leases, most) : most;
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
               sharing ? std::optional(Forward::Leases{.sharing = sharing_.get(),
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
  return std::make_unique<Sharing>(Sharing::Options{.num_blocks = cache_.local().total,
                                                    .scrub_on_return = options_.scrub_on_return,
                                                    .streamed_layers = Streams(parts) ? layout_.num_layers : 0,
                                                    .revoke_deadline = options_.revoke_deadline},
                                   Sharing::Dependencies{.own = &own_,
                                                         .cache = &cache_,
                                                         .scheduler = &scheduler_,
                                                         .transport = parts.transport,
                                                         .coordinator = parts.coordinator,
                                                         .urgency = parts.urgency,
                                                         .clock = &clock_,
                                                         .metrics = metrics_});
}

bool StepLoop::Streams(const LoopSharing& parts) const {
  return options_.stream == StreamMode::kLsc || !parts.transport->maps();
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

void StepLoop::Accept(std::unique_ptr<LiveRequest> request) {
  LiveRequest& accepted = live_.Add(std::move(request));
  accepted.stop_ids.insert(accepted.request.stop_token_ids.begin(), accepted.request.stop_token_ids.end());
  if (!accepted.request.ignore_eos) accepted.stop_ids.insert(options_.eos_ids.begin(), options_.eos_ids.end());
  accepted.first_sequence = sched::SequenceId(next_sequence_);
  next_sequence_ += accepted.request.n;
  if (!accepted.request.max_tokens) {  // nobody asked for more than there is at present
    accepted.max_total_tokens =
        std::clamp(cache_.num_potential() * options_.block_tokens,
                   static_cast<int64_t>(accepted.request.prompt.size()) + 1, accepted.max_total_tokens);
  }
  live_.Begin(accepted);
  live_.Park(accepted);
  AdmitParked();
}

// Donors may have what it takes to hold the rest: they are asked, and for a while it waits for their answer.
void StepLoop::AdmitParked() {
  while (live_.any_parked() && scheduler_.CanEverFit(live_.least_parked().max_total_tokens - 1)) {
    LiveRequest& request = live_.least_parked();
    live_.Unpark(request);
    scheduler_.Add(request.continuations.front().get());
  }
  if (live_.any_parked()) cache_.NoteWish(cache_.BlocksFor(live_.most_parked().max_total_tokens - 1));
}

void StepLoop::EndStarved() {
  for (LiveRequest* request : starvation_.Look()) Close(*request, absl::OutOfRangeError(WhyStarved(*request)));
}

std::string StepLoop::WhyStarved(const LiveRequest& request) const {
  std::string why =
      absl::StrCat("the request may grow to ", request.max_total_tokens, " tokens; this engine's own memory holds ",
                   cache_.num_usable_local() * options_.block_tokens, ", with what others lend at present ",
                   cache_.num_usable() * options_.block_tokens);
  const auto exhausted = std::find_if(request.continuations.begin(), request.continuations.end(),
                                      [this](const auto& c) { return !c->done && scheduler_.IsExhausted(*c); });
  if (exhausted != request.continuations.end()) {
    absl::StrAppend(&why, "; they took what it lay in back ", (*exhausted)->losses, " times, for which ",
                    (*exhausted)->again_tokens, " tokens were computed again");
  } else {
    const std::string& shortage = sharing_->borrowing().shortage();
    absl::StrAppend(&why, " (waited ", absl::FormatDuration(options_.lease_patience), " for more",
                    shortage.empty() ? "" : "; the broker says: ", shortage, ")");
  }
  return why + ": shorten the prompt, lower max_tokens, or raise --kv_cache_bytes";
}

void StepLoop::Cancel(const std::string& request_id) {
  LiveRequest* request = live_.Find(request_id);
  if (request == nullptr) return;
  Close(*request, absl::CancelledError("the request was cancelled"));
  Publish();
}

void StepLoop::EndAll() {
  while (!live_.empty()) {
    LiveRequest& request = *live_.by_id().begin()->second;
    if (request.output_tokens() == 0) {
      Close(request,
            absl::UnavailableError("the engine stopped before the first token: send the request to another engine"));
      continue;
    }
    for (const auto& continuation : request.continuations) {
      if (continuation->done) continue;
      outbox_.Add({.sink = request.sink.get(),
                   .index = continuation->index,
                   .finish = FinishReason::kCancelled,
                   .usage = request.UsageOf(*continuation)});
    }
    Close(request, absl::OkStatus());
  }
  Publish();
}

bool StepLoop::Step() {
  meter_.Begin();
  if (sharing_) {
    sharing_->borrowing().FinishFetches();
    sharing_->borrowing().FinishRegions();
    EndStarved();
  }
  if (options_.target_itl > absl::ZeroDuration()) {
    scheduler_.LimitPromptTokensBesideDecodes(pace_.PromptTokensWithin(options_.target_itl));
  }
  if (sharing_) scheduler_.LimitTokensTouchingRegions(TokensOnLeases());
  const sched::StepPlan plan = scheduler_.Plan();
  NoteStarts(plan);
  bool computes = sharing_ ? ServeLeases(plan) : !plan.chunks.empty();
  if (computes) {
    forward_.Gather(plan);
    computes = !sharing_ || sharing_->borrowing().BeginReads(forward_.leases_read());
  }
  if (computes) RunStep(plan);
  Publish();
  return computes;
}

// What leases ask for between plan and forward pass. False: nothing is to be computed before memory is back.
bool StepLoop::ServeLeases(const sched::StepPlan& plan) {
  SizeLayerStream();
  sharing_->lending().StateNeed(scheduler_.missing_blocks());
  if (plan.chunks.empty() || sharing_->lending().ShouldDefer(plan)) return false;
  if (sharing_->borrowing().saves_blocks() || sharing_->borrowing().LeaveSilentDonors()) return false;
  sharing_->Advance(TokensNotRunning(), live_.longest_tokens());
  return true;
}

// Two steps in a row may be cut short for leases that are wanted back; the next one runs to its end, so that there is
// progress whatever donors do.
constexpr int64_t kMaxCutShortInARow = 2;

bool StepLoop::RunStep(const sched::StepPlan& plan) {
  const bool may_cut = sharing_ != nullptr && cut_short_in_a_row_ < kMaxCutShortInARow;
  const absl::Time begin = clock_.Now();
  absl::StatusOr<Forward::Outcome> outcome = forward_.Run(may_cut);
  if (sharing_) sharing_->borrowing().EndReads();
  if (!outcome.ok()) {
    if (backend::IsDeviceLost(outcome.status())) {
      LoseDevice(outcome.status());
    } else {
      FailStep(plan, outcome.status());
    }
    return false;
  }
  meter_.Computed(plan, {.in_place_bytes = forward_.in_place_bytes(), .whole = !outcome->cut_short});
  if (!outcome->cut_short) scheduler_.NoteComputed(plan);
  if (!outcome->lost.empty()) sharing_->borrowing().NoteLost(outcome->lost);  // resets the sequences that read them
  cut_short_in_a_row_ = outcome->cut_short ? cut_short_in_a_row_ + 1 : 0;
  const int64_t tokens = outcome->cut_short ? std::max(TokensOnLeases() / 2, kLeastOnLeases) : 2 * tokens_on_leases_;
  tokens_on_leases_ = std::min(tokens, MaxOnLeases(options_));
  if (outcome->cut_short) return false;
  NotePace(plan, clock_.Now() - begin);
  scheduler_.Commit(plan);
  TakeTokens(plan, std::move(outcome->tokens));
  return true;
}

// So many that a layer of the step takes its part of the deadline, as far as one can tell.
int64_t StepLoop::TokensOnLeases() const {
  const absl::Duration layers = options_.revoke_deadline / kLayerDivisor * layout_.num_layers;
  return std::min(tokens_on_leases_, scheduler_.num_running() + pace_.PromptTokensWithin(layers));
}

void StepLoop::NotePace(const sched::StepPlan& plan, absl::Duration time) {
  sched::StepPace::Load load;
  for (const sched::Chunk& chunk : plan.chunks) {
    chunk.num_tokens == 1 ? ++load.decodes : load.prompt_tokens += chunk.num_tokens;
  }
  pace_.Note(load, time);
}

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
  SizeLayerStream();  // the last step, or this, may have ended the last lease
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
  const int64_t wanted = sharing_->borrowing().StreamBlocks(cache_.leased_in().total);
  const auto reserved = static_cast<int64_t>(cache_.reserved().size());
  if (wanted < reserved) cache_.ReleaseReserved(reserved - wanted);
  // The rest as memory comes free. Until then some leased blocks are read where they lie; where they are not mapped,
  // none are put there that have no slot, and what is idle makes way.
  const kv::PlaceCounts local = cache_.local();
  const int64_t room = local.free + (sharing_->borrowing().leases_are_mapped() ? 0 : local.cached);
  if (const int64_t more = std::min(wanted - reserved, room / 2); more > 0) (void)cache_.ReserveLocal(more);
  if (static_cast<int64_t>(cache_.reserved().size()) == reserved) return;
  streamer_->SetSlots(cache_.reserved());
  if (!sharing_->borrowing().leases_are_mapped()) cache_.SetStreamCapacity(streamer_->capacity());
}

void StepLoop::NoteStarts(const sched::StepPlan& plan) {
  ++steps_;
  preemptions_ += static_cast<int64_t>(plan.preempted.size());
  metrics_->Stepped(static_cast<int64_t>(plan.preempted.size()));
  for (sched::Sequence* sequence : plan.admitted) {
    LiveRequest& request = *AsContinuation(*sequence).request;
    if (request.start_time) continue;
    request.start_time = clock_.Now();
    metrics_->Started(*request.start_time - request.arrival_time);
    observer_->OnStarted(request);
  }
  if (!plan.admitted.empty() || !plan.preempted.empty()) observer_->OnLoad(load());  // a step can last seconds
}

// A request that one of its continuations ended early is gone for those after it.
void StepLoop::TakeTokens(const sched::StepPlan& plan, std::vector<backend::Sampled> tokens) {
  auto next = tokens.begin();
  for (const sched::Chunk& chunk : plan.chunks) {
    if (!chunk.samples) continue;
    Continuation& continuation = AsContinuation(*chunk.sequence);
    backend::Sampled token = std::move(*next++);
    if (continuation.done || continuation.remaining_tokens() != 0) continue;  // ended, or reset: computed again
    if (token.ok()) {
      Append(continuation, *std::move(token));
    } else {
      Close(*continuation.request, token.status());
    }
  }
}

void StepLoop::Append(Continuation& continuation, sample::SampledToken token) {
  LiveRequest& request = *continuation.request;
  live_.Append(continuation, token.token_id);
  continuation.sampling.Observe(token.token_id);
  OutboundToken event{.sink = request.sink.get(), .index = continuation.index, .token_id = token.token_id};
  event.since_last = NoteTime(continuation);
  if (request.request.sampling.logprobs) event.logprob = {token.token_id, token.logprob, std::move(token.top)};
  event.finish = request.FinishAfter(continuation, token.token_id);
  // With the first token too: a reader may stop before the last.
  if (event.finish || continuation.output_tokens() == 1) event.usage = request.UsageOf(continuation);
  const bool finished = event.finish.has_value();
  outbox_.Add(std::move(event));
  if (continuation.index == 0 && continuation.output_tokens() == 1) BeginSiblings(request);
  if (finished) Finish(continuation);
}

std::optional<absl::Duration> StepLoop::NoteTime(Continuation& continuation) {
  const absl::Time now = clock_.Now();
  const absl::Time last = std::exchange(continuation.last_token_time, now);
  metrics_->Generated(1);
  if (continuation.first_token_time) return now - last;
  continuation.first_token_time = now;
  const int64_t cached = continuation.cached_tokens.value_or(0);
  prompt_computed_ += continuation.prompt_tokens - cached;
  prompt_local_ += cached - continuation.cached_leased_tokens;
  prompt_donor_ += continuation.cached_leased_tokens;
  metrics_->Prompt(continuation.prompt_tokens, cached, continuation.cached_leased_tokens);
  if (continuation.index == 0) {
    metrics_->FirstToken(now - continuation.request->arrival_time);
    meter_.FirstToken(continuation);
  }
  return std::nullopt;
}

// Only now, when the first continuation's prompt is in the prefix cache for the others to find.
void StepLoop::BeginSiblings(LiveRequest& request) {
  while (static_cast<int64_t>(request.continuations.size()) < request.request.n) scheduler_.Add(live_.Begin(request));
}

void StepLoop::Finish(Continuation& continuation) {
  scheduler_.Remove(&continuation);
  continuation.done = true;
  metrics_->Finished(continuation.prompt_tokens, continuation.output_tokens(),
                     continuation.last_token_time - *continuation.first_token_time);
  LiveRequest& request = *continuation.request;
  if (++request.num_done == request.request.n) Close(request, absl::OkStatus());
}

void StepLoop::LoseDevice(const absl::Status& why) {
  const absl::Status end = absl::UnavailableError(absl::StrCat(
      "the engine's device is lost: ", std::string(why.message()), "; send the request to another engine"));
  while (!live_.empty()) Close(*live_.by_id().begin()->second, end);
  observer_->OnDeviceLost(why);
}

void StepLoop::FailStep(const sched::StepPlan& plan, const absl::Status& status) {
  LOG(ERROR) << "the model failed a step of " << plan.chunks.size() << " sequences: " << status.ToString();
  const absl::Status failure = absl::InternalError(
      absl::StrCat("the model failed the step that this request was in: ", status.ToString(), "; send it again"));
  for (const sched::Chunk& chunk : plan.chunks) {
    Continuation& continuation = AsContinuation(*chunk.sequence);
    if (!continuation.done) Close(*continuation.request, failure);
  }
}

// Frees the blocks; the request lives on until its sink has heard of it.
void StepLoop::Close(LiveRequest& request, const absl::Status& status) {
  for (const auto& continuation : request.continuations) {
    if (continuation->done) continue;
    scheduler_.Remove(continuation.get());
    continuation->done = true;
  }
  std::unique_ptr<LiveRequest> closed = live_.Take(request);
  const absl::Duration since_arrival = clock_.Now() - closed->arrival_time;
  outbox_.Close(std::move(closed), status, since_arrival);
}

void StepLoop::Publish() {
  for (const ClosedRequest& closed : outbox_.closed()) observer_->OnEnded(*closed.request);
  observer_->OnLoad(load());
  observer_->Deliver(outbox_.Take());
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
          .kv_blocks_leased_in = leased.total,
          .kv_blocks_leased_in_used = leased.used + leased.cached,
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
  return scheduler_.CheckInvariants();
}

}  // namespace swiftcache::engine::exec
