// SPDX-License-Identifier: Apache-2.0
#include "engine/exec/step_loop.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/log/log.h"

namespace swiftcache::engine::exec {
namespace {

void LogEnd(const LiveRequest& request, const absl::Status& status, absl::Duration since_arrival) {
  const Usage usage = request.UsageOf(*request.continuations.front());
  LOG(INFO) << RequestTag{request.request.request_id, request.request.traceparent}
            << "ended status=" << absl::StatusCodeToString(status.code()) << " prompt_tokens=" << usage.prompt_tokens
            << " cached_tokens=" << usage.cached_local_tokens << " output_tokens=" << request.output_tokens()
            << " queue_time=" << usage.queue_time << " time_to_first_token=" << usage.time_to_first_token
            << " time=" << since_arrival << (status.ok() ? "" : " error=") << status.message();
}

}  // namespace

StepLoop::StepLoop(const EngineOptions& options, std::unique_ptr<models::Model> model, kv::Arena arena,
                   const Clock& clock, EngineMetrics* metrics, LoopObserver* observer)
    : eos_ids_(options.eos_ids),
      model_(std::move(model)),
      arena_(std::move(arena)),
      clock_(clock),
      metrics_(metrics),
      observer_(observer),
      cache_({.num_blocks = arena_.num_blocks(),
              .block_tokens = options.block_tokens,
              .enable_prefix_caching = options.enable_prefix_caching,
              .max_chunk_tokens = options.max_num_batched_tokens}),
      scheduler_({.max_num_seqs = options.max_num_seqs, .max_num_batched_tokens = options.max_num_batched_tokens},
                 &cache_),
      forward_(model_.get(), &arena_, &cache_) {
  observer_->OnLoad(load());
}

void StepLoop::Accept(std::unique_ptr<LiveRequest> request) {
  LiveRequest& accepted = *request;
  accepted.stop_ids.insert(accepted.request.stop_token_ids.begin(), accepted.request.stop_token_ids.end());
  if (!accepted.request.ignore_eos) accepted.stop_ids.insert(eos_ids_.begin(), eos_ids_.end());
  accepted.first_sequence = sched::SequenceId(next_sequence_);
  next_sequence_ += accepted.request.n;
  live_.emplace(accepted.request.request_id, std::move(request));
  scheduler_.Add(accepted.Begin());
}

void StepLoop::Cancel(const std::string& request_id) {
  const auto live = live_.find(request_id);
  if (live == live_.end()) return;
  Close(*live->second, absl::CancelledError("the request was cancelled"));
  Publish();
}

void StepLoop::EndAll() {
  while (!live_.empty()) {
    LiveRequest& request = *live_.begin()->second;
    if (request.output_tokens() == 0) {
      Close(request,
            absl::UnavailableError("the engine stopped before the first token: send the request to another engine"));
      continue;
    }
    if (static_cast<int64_t>(request.continuations.size()) < request.request.n) BeginSiblings(request);
    for (const auto& continuation : request.continuations) {
      if (continuation->done) continue;
      outbox_.Add(
          request,
          {.index = continuation->index, .finish = FinishReason::kCancelled, .usage = request.UsageOf(*continuation)});
    }
    Close(request, absl::OkStatus());
  }
  Publish();
}

void StepLoop::Step() {
  const sched::StepPlan plan = scheduler_.Plan();
  NoteStarts(plan);
  const absl::StatusOr<std::span<const float>> logits = forward_.Run(plan);
  if (logits.ok()) {
    scheduler_.Commit(plan);
    SampleAll(plan, *logits);
  } else {
    FailStep(plan, logits.status());
  }
  Publish();
}

void StepLoop::NoteStarts(const sched::StepPlan& plan) {
  ++steps_;
  preemptions_ += static_cast<int64_t>(plan.preempted.size());
  metrics_->Stepped(static_cast<int64_t>(plan.preempted.size()));
  for (sched::Sequence* sequence : plan.admitted) {
    LiveRequest& request = *AsContinuation(sequence).request;
    if (request.start_time) continue;
    request.start_time = clock_.Now();
    metrics_->Started(*request.start_time - request.arrival_time);
    observer_->OnStarted(request);
  }
  if (!plan.admitted.empty() || !plan.preempted.empty()) observer_->OnLoad(load());  // a step can last seconds
}

// A request that one of its continuations ended early is gone for those after it.
void StepLoop::SampleAll(const sched::StepPlan& plan, std::span<const float> logits) {
  const int64_t vocab_size = model_->geometry().vocab_size;
  int64_t row = 0;
  for (const sched::Chunk& chunk : plan.chunks) {
    if (!chunk.samples) continue;
    Continuation& continuation = AsContinuation(chunk.sequence);
    const auto row_logits = logits.subspan(row++ * vocab_size, vocab_size);
    if (continuation.done) continue;
    const auto position = static_cast<int64_t>(continuation.tokens.size());
    absl::StatusOr<sample::SampledToken> token = sampler_.Sample(row_logits, continuation.sampling, position);
    if (token.ok()) {
      Append(continuation, *std::move(token));
    } else {
      Close(*continuation.request, token.status());
    }
  }
}

void StepLoop::Append(Continuation& continuation, sample::SampledToken token) {
  LiveRequest& request = *continuation.request;
  continuation.tokens.push_back(token.token_id);
  continuation.sampling.Observe(token.token_id);
  NoteTime(continuation);
  TokenEvent event{.index = continuation.index, .token_ids = {token.token_id}};
  if (request.request.sampling.logprobs) {
    event.logprobs.push_back({token.token_id, token.logprob, std::move(token.top)});
  }
  event.finish = request.FinishAfter(continuation, token.token_id);
  // With the first token too: a reader may stop before the last.
  if (event.finish || continuation.output_tokens() == 1) event.usage = request.UsageOf(continuation);
  const bool finished = event.finish.has_value();
  outbox_.Add(request, std::move(event));
  if (continuation.index == 0 && continuation.output_tokens() == 1) BeginSiblings(request);
  if (finished) Finish(continuation);
}

void StepLoop::NoteTime(Continuation& continuation) {
  const absl::Time now = clock_.Now();
  metrics_->Generated(1);
  if (continuation.first_token_time) {
    metrics_->NextToken(now - continuation.last_token_time);
  } else {
    continuation.first_token_time = now;
    metrics_->Prompt(continuation.prompt_tokens, continuation.cached_tokens.value_or(0));
    if (continuation.index == 0) metrics_->FirstToken(now - continuation.request->arrival_time);
  }
  continuation.last_token_time = now;
}

// Only now, when the first continuation's prompt is in the prefix cache for the others to find.
void StepLoop::BeginSiblings(LiveRequest& request) {
  while (static_cast<int64_t>(request.continuations.size()) < request.request.n) scheduler_.Add(request.Begin());
}

void StepLoop::Finish(Continuation& continuation) {
  scheduler_.Remove(&continuation);
  continuation.done = true;
  LiveRequest& request = *continuation.request;
  if (++request.num_done == request.request.n) Close(request, absl::OkStatus());
}

void StepLoop::FailStep(const sched::StepPlan& plan, const absl::Status& status) {
  LOG(ERROR) << "the model failed a step of " << plan.chunks.size() << " sequences: " << status.ToString();
  const absl::Status failure = absl::InternalError(
      absl::StrCat("the model failed the step that this request was in: ", status.ToString(), "; send it again"));
  for (const sched::Chunk& chunk : plan.chunks) {
    Continuation& continuation = AsContinuation(chunk.sequence);
    if (!continuation.done) Close(*continuation.request, failure);
  }
}

// Frees the blocks; the request lives on in the outbox until its sink has heard of it.
void StepLoop::Close(LiveRequest& request, const absl::Status& status) {
  for (const auto& continuation : request.continuations) {
    if (continuation->done) continue;
    scheduler_.Remove(continuation.get());
    continuation->done = true;
  }
  const auto live = live_.find(request.request.request_id);
  std::unique_ptr<LiveRequest> closed = std::move(live->second);
  live_.erase(live);
  outbox_.Close(std::move(closed), status);
}

void StepLoop::Publish() {
  for (const Outbox::Closed& closed : outbox_.closed()) {
    const absl::Duration since_arrival = clock_.Now() - closed.request->arrival_time;
    metrics_->Ended(closed.status, since_arrival);
    LogEnd(*closed.request, closed.status, since_arrival);
    observer_->OnEnded(*closed.request);
  }
  observer_->OnLoad(load());
  outbox_.Send();
}

EngineLoad StepLoop::load() const {
  const kv::PlaceCounts kv_blocks = cache_.local();
  EngineLoad load{.kv_blocks_total = kv_blocks.total,
                  .kv_blocks_used = kv_blocks.used,
                  .kv_blocks_cached = kv_blocks.cached,
                  .kv_blocks_free = kv_blocks.free,
                  .steps_total = steps_,
                  .preemptions_total = preemptions_,
                  .evicted_blocks_total = cache_.evicted_total()};
  for (const auto& [id, request] : live_) {
    const bool runs = std::any_of(request->continuations.begin(), request->continuations.end(),
                                  [this](const auto& c) { return !c->done && scheduler_.is_running(c.get()); });
    ++(runs ? load.running_requests : load.waiting_requests);
  }
  return load;
}

absl::Status StepLoop::CheckInvariants() const {
  int64_t sequences = 0;
  for (const auto& [id, request] : live_) {
    int64_t done = 0;
    for (const auto& continuation : request->continuations) done += continuation->done;
    if (done != request->num_done) {
      return absl::InternalError(
          absl::StrCat(id, " has ", done, " finished continuations, counted ", request->num_done));
    }
    sequences += static_cast<int64_t>(request->continuations.size()) - done;
  }
  if (sequences != scheduler_.num_running() + scheduler_.num_waiting()) {
    return absl::InternalError(absl::StrCat(sequences, " sequences are live, the scheduler has ",
                                            scheduler_.num_running(), " running and ", scheduler_.num_waiting(),
                                            " waiting"));
  }
  return scheduler_.CheckInvariants();
}

}  // namespace swiftcache::engine::exec
