// SPDX-License-Identifier: Apache-2.0
#include "engine/exec/live_request.h"

#include <utility>

namespace swiftcache::engine::exec {
namespace {

sched::TokenList Shared(const std::vector<int32_t>& prompt, int64_t block_tokens) {
  const auto own = prompt.end() - static_cast<int64_t>(prompt.size()) % block_tokens;
  return {{prompt.begin(), own}, {own, prompt.end()}};
}

}  // namespace

Continuation::Continuation(LiveRequest* request, int32_t index, sched::SequenceId id, int64_t block_tokens)
    : request(request), index(index), sampling(request->request.sampling, index, request->seen_in_prompt) {
  this->id = id;
  priority = request->request.priority;
  group = &request->group;
  cache_salt = request->request.cache_salt;
  tokens = Shared(request->request.prompt, block_tokens);
  prompt_tokens = tokens.size();
}

LiveRequest::LiveRequest(Request request, std::unique_ptr<ResponseSink> sink, absl::Time arrival_time,
                         int64_t max_total_tokens)
    : request(std::move(request)),
      sink(std::move(sink)),
      arrival_time(arrival_time),
      max_total_tokens(max_total_tokens),
      seen_in_prompt(sample::SeenIn(this->request.prompt, this->request.sampling)) {}

Continuation* LiveRequest::Begin(int64_t block_tokens) {
  const auto index = static_cast<int32_t>(continuations.size());
  const sched::SequenceId id(first_sequence.value() + index);
  return continuations.emplace_back(std::make_unique<Continuation>(this, index, id, block_tokens)).get();
}

std::optional<FinishReason> LiveRequest::FinishAfter(const Continuation& continuation, int32_t token) const {
  if (stop_ids.contains(token)) return FinishReason::kStop;
  if (continuation.tokens.size() >= max_total_tokens) return FinishReason::kLength;
  return std::nullopt;
}

Usage LiveRequest::UsageOf(const Continuation& continuation) const {
  Usage usage{.prompt_tokens = continuation.prompt_tokens,
              .completion_tokens = continuation.output_tokens(),
              .cached_local_tokens = continuation.cached_tokens.value_or(0) - continuation.cached_leased_tokens,
              .cached_donor_tokens = continuation.cached_leased_tokens};
  if (continuation.first_token_time) usage.time_to_first_token = *continuation.first_token_time - arrival_time;
  if (start_time) usage.queue_time = *start_time - arrival_time;
  return usage;
}

int64_t LiveRequest::output_tokens() const {
  int64_t total = 0;
  for (const auto& continuation : continuations) total += continuation->output_tokens();
  return total;
}

}  // namespace swiftcache::engine::exec
