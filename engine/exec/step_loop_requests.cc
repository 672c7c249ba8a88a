// SPDX-License-Identifier: Apache-2.0
// The step loop's requests: how they come in, what a step's tokens are to them, how they end.
#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/log/log.h"
#include "engine/exec/step_loop.h"

namespace swiftcache::engine::exec {
namespace {

int64_t PromptTokens(const LiveRequest& request) { return static_cast<int64_t>(request.request.prompt.size()); }

// ", and max_tokens is 100000 (8181 within the context of 8192)"; "" where there is none.
std::string AskedFor(const LiveRequest& request) {
  if (request.takes_what_there_is()) return "";
  const int64_t max_tokens = *request.request.max_tokens;
  const int64_t allowed = request.max_total_tokens - PromptTokens(request);
  const std::string context =
      allowed < max_tokens ? absl::StrCat(" (", allowed, " within the context of ", request.max_total_tokens, ")") : "";
  return absl::StrCat(", and max_tokens is ", max_tokens, context);
}

// `fit` tokens of an answer find memory at present; below 1: the prompt does not.
std::string Remedy(const LiveRequest& request, int64_t fit) {
  constexpr char kAlways[] = "shorten the prompt, or raise --kv_cache_bytes";
  if (request.takes_what_there_is() || fit < 1) return kAlways;
  const bool lower = PromptTokens(request) + fit < request.max_total_tokens;
  return absl::StrCat(lower ? absl::StrCat("at most ", fit, " fit now; ") : "", "leave max_tokens out, lower it, ",
                      kAlways);
}

}  // namespace

void StepLoop::Accept(std::unique_ptr<LiveRequest> request) {
  LiveRequest& accepted = live_.Add(std::move(request));
  accepted.stop_ids.insert(accepted.request.stop_token_ids.begin(), accepted.request.stop_token_ids.end());
  if (!accepted.request.ignore_eos) accepted.stop_ids.insert(options_.eos_ids.begin(), options_.eos_ids.end());
  accepted.first_sequence = sched::SequenceId(next_sequence_);
  next_sequence_ += accepted.request.n;
  live_.Begin(accepted);
  live_.Park(accepted);
  AdmitParked();
}

// Donors may have what it takes to hold the rest: they are asked, and for a while it waits for their answer.
void StepLoop::AdmitParked() {
  while (live_.any_parked() && scheduler_.CanEverFit(live_.least_parked().tokens_to_begin() - 1)) {
    LiveRequest& request = live_.least_parked();
    live_.Unpark(request);
    scheduler_.Add(request.continuations.front().get());
  }
  if (live_.any_parked()) cache_.NoteWish(cache_.BlocksFor(live_.most_parked().tokens_to_begin() - 1));
}

void StepLoop::EndStarved() {
  const Borrowing& borrowing = sharing_->borrowing();
  const std::vector<Starvation::Ended> starved =
      starvation_.Look(borrowing.needs_refused(), borrowing.need_is_refused() && cache_.num_withheld() == 0);
  for (const auto& [request, continuations] : starved) {
    const bool cut = request->takes_what_there_is() && request->output_tokens() > 0;
    if (cut) {
      for (Continuation* continuation : continuations) {
        metrics_->Starved(/*cut=*/true);
        AddEnd(*continuation, FinishReason::kLength);
        Finish(*continuation);  // the last may end the request
      }
    } else {
      metrics_->Starved(/*cut=*/false);
      Close(*request, absl::OutOfRangeError(WhyStarved(*request)));
    }
  }
  if (!starved.empty()) ForgetNeed();
}

void StepLoop::ForgetNeed() {
  if (sharing_ && !has_work()) sharing_->borrowing().ForgetNeed();
}

std::string StepLoop::WhyStarved(const LiveRequest& request) const {
  const int64_t usable_tokens = cache_.num_usable() * options_.block_tokens;
  const int64_t fit = usable_tokens - PromptTokens(request) + 1;  // of an answer's last token no KV is kept
  std::string why =
      absl::StrCat("the prompt has ", PromptTokens(request), " tokens", AskedFor(request),
                   "; this engine's own memory holds ", cache_.num_usable_local() * options_.block_tokens,
                   " in all, with what others lend at present ", usable_tokens, ": ", Remedy(request, fit));
  const auto exhausted = std::find_if(request.continuations.begin(), request.continuations.end(),
                                      [this](const auto& c) { return !c->done && scheduler_.IsExhausted(*c); });
  if (exhausted != request.continuations.end()) {
    absl::StrAppend(&why, " (others took what it lay in back ", (*exhausted)->losses, " times, for which ",
                    (*exhausted)->again_tokens, " tokens were computed again)");
  } else {
    const std::string& shortage = sharing_->borrowing().shortage();
    absl::StrAppend(&why, " (waited ", absl::FormatDuration(options_.lease_patience), " for more",
                    shortage.empty() ? "" : "; the broker says: ", shortage, ")");
  }
  return why;
}

void StepLoop::Cancel(const std::string& request_id, RequestNumber number, std::optional<int32_t> index) {
  LiveRequest* request = live_.Find(request_id);
  if (request == nullptr || request->request.number != number) return;
  if (index) {
    CancelOne(*request, *index);
  } else {
    Close(*request, absl::CancelledError("the request was cancelled"));
  }
  ForgetNeed();
  Publish();
}

void StepLoop::CancelOne(LiveRequest& request, int32_t index) {
  if (index < 0 || index >= static_cast<int64_t>(request.continuations.size())) return;
  Continuation& continuation = *request.continuations[index];
  if (continuation.done || continuation.output_tokens() == 0) return;
  AddEnd(continuation, FinishReason::kCancelled);
  End(continuation);
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
      if (!continuation->done) AddEnd(*continuation, FinishReason::kCancelled);
    }
    Close(request, absl::OkStatus());
  }
  Publish();
}

// An end without a token.
void StepLoop::AddEnd(const Continuation& continuation, FinishReason why) {
  LiveRequest& request = *continuation.request;
  outbox_.Add(
      {.sink = request.sink.get(), .index = continuation.index, .finish = why, .usage = request.UsageOf(continuation)});
}

// A request that one of its continuations ended early is gone for those after it.
void StepLoop::TakeTokens(const sched::StepPlan& plan, std::vector<backend::Sampled> tokens) {
  auto next = tokens.begin();
  const absl::Time now = clock_.Now();
  int64_t generated = 0;
  for (const sched::Chunk& chunk : plan.chunks) {
    if (!chunk.samples) continue;
    Continuation& continuation = AsContinuation(*chunk.sequence);
    backend::Sampled token = std::move(*next++);
    if (continuation.done || continuation.remaining_tokens() != 0) continue;  // ended, or reset: computed again
    if (token.ok()) {
      Append(continuation, *std::move(token), now);
      ++generated;
    } else {
      Close(*continuation.request, token.status());
    }
  }
  if (generated > 0) metrics_->Generated(generated);
}

void StepLoop::Append(Continuation& continuation, sample::SampledToken token, absl::Time now) {
  LiveRequest& request = *continuation.request;
  live_.Append(continuation, token.token_id);
  continuation.sampling.Observe(token.token_id);
  OutboundToken event{.sink = request.sink.get(), .index = continuation.index, .token_id = token.token_id};
  event.since_last = NoteTime(continuation, now);
  if (request.request.sampling.logprobs) event.logprob = {token.token_id, token.logprob, std::move(token.top)};
  event.finish = request.FinishAfter(continuation, token.token_id);
  // With the first token too: a reader may stop before the last.
  if (event.finish || continuation.output_tokens() == 1) event.usage = request.UsageOf(continuation);
  const bool finished = event.finish.has_value();
  outbox_.Add(std::move(event));
  if (continuation.index == 0 && continuation.output_tokens() == 1) BeginSiblings(request);
  if (finished) Finish(continuation);
}

std::optional<absl::Duration> StepLoop::NoteTime(Continuation& continuation, absl::Time now) {
  const absl::Time last = std::exchange(continuation.last_token_time, now);
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
  if (continuation.first_token_time) {
    metrics_->Finished(continuation.prompt_tokens, continuation.output_tokens(),
                       continuation.last_token_time - *continuation.first_token_time);
  }
  End(continuation);
}

void StepLoop::End(Continuation& continuation) {
  scheduler_.Remove(&continuation);
  continuation.done = true;
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

}  // namespace swiftcache::engine::exec
