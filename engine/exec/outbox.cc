// SPDX-License-Identifier: Apache-2.0
#include "engine/exec/outbox.h"

#include "common/log/log.h"

namespace swiftcache::engine::exec {
namespace {

TokenEvent ToEvent(OutboundToken token) {
  TokenEvent event{.index = token.index, .finish = token.finish, .usage = token.usage};
  if (token.token_id) event.token_ids.push_back(*token.token_id);
  if (token.logprob) event.logprobs.push_back(*std::move(token.logprob));
  return event;
}

void LogEnd(const ClosedRequest& closed) {
  const LiveRequest& request = *closed.request;
  const Usage usage = request.UsageOf(*request.continuations.front());
  LOG(INFO) << RequestTag{request.request.request_id, request.request.traceparent}
            << "ended status=" << absl::StatusCodeToString(closed.status.code())
            << " prompt_tokens=" << usage.prompt_tokens
            << " cached_tokens=" << usage.cached_local_tokens + usage.cached_donor_tokens
            << " output_tokens=" << request.output_tokens() << " queue_time=" << usage.queue_time
            << " time_to_first_token=" << usage.time_to_first_token << " time=" << closed.since_arrival
            << (closed.status.ok() ? "" : " error=") << closed.status.message();
}

}  // namespace

// The next step has about as much to say: one allocation.
OutboundBatch Outbox::Take() {
  OutboundBatch batch = std::exchange(batch_, {});
  batch_.tokens.reserve(batch.tokens.size());
  return batch;
}

void CallSinks(OutboundBatch batch, EngineMetrics* metrics,
               const std::function<void(const LiveRequest&)>& before_done) {
  for (OutboundToken& token : batch.tokens) {
    if (token.since_last) metrics->NextToken(*token.since_last);
    if (token.finish) metrics->FinishedFor(*token.finish);
    ResponseSink& sink = *token.sink;
    sink.OnTokens(ToEvent(std::move(token)));
  }
  for (ClosedRequest& closed : batch.closed) {
    metrics->Ended(closed.status, closed.since_arrival);
    if (absl::IsCancelled(closed.status)) metrics->FinishedFor(FinishReason::kCancelled, closed.request->unfinished());
    LogEnd(closed);
    before_done(*closed.request);
    closed.request->sink->OnDone(std::move(closed.status));
  }
  for (const OutboundToken& token : batch.tokens) token.sink->OnStepEnd();
  for (const ClosedRequest& closed : batch.closed) closed.request->sink->OnStepEnd();
}

}  // namespace swiftcache::engine::exec
