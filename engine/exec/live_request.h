// SPDX-License-Identifier: Apache-2.0
// A request inside the loop: what was asked, its continuations, where its events go.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <typeinfo>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/time/time.h"
#include "common/log/log.h"
#include "engine/exec/block_addresses.h"
#include "engine/exec/prefill_times.h"
#include "engine/exec/request.h"
#include "engine/sample/sampling_state.h"
#include "engine/sched/sequence.h"

namespace swiftcache::engine::exec {

struct LiveRequest;

/// One of the n continuations of a request. Every Sequence that the loop gives to its scheduler is one of these.
/// Thread-safety: none. Ownership: by its LiveRequest.
struct Continuation final : sched::Sequence {
  Continuation(LiveRequest* request, int32_t index, sched::SequenceId id, int64_t block_tokens);

  LiveRequest* const request;
  const int32_t index;
  sample::SamplingState sampling;
  BlockAddresses addresses;  // of `blocks`, as of its last step
  std::optional<absl::Time> first_token_time;
  absl::Time last_token_time;
  PrefillTimes prefill;         // until the first token; queue is known only then
  absl::Duration in_steps;      // likewise
  bool starves = false;         // own memory and leases were too small for it at the last look,
  absl::Duration starved;       // and have been for so long (Starvation)
  int64_t refusals_before = 0;  // when that began: those that were told to anybody
  bool done = false;

  int64_t output_tokens() const { return tokens.size() - prompt_tokens; }
};

/// Ends the process where it is something else.
inline Continuation& AsContinuation(sched::Sequence& sequence) {
  CHECK(typeid(sequence) == typeid(Continuation)) << "sequence " << sequence.id << " is no continuation";
  return static_cast<Continuation&>(sequence);  // it is final, so that it is exactly that
}

/// Thread-safety: none; handed to the loop whole. Ownership: owns sink and continuations.
struct LiveRequest {
  /// O(prompt log prompt) with a repetition penalty: for the submitter's thread rather than the loop's.
  /// `max_total_tokens`: prompt and output of one continuation.
  LiveRequest(Request request, std::unique_ptr<ResponseSink> sink, absl::Time arrival_time, int64_t max_total_tokens);

  const Request request;
  const std::unique_ptr<ResponseSink> sink;
  const absl::Time arrival_time;
  const int64_t max_total_tokens;
  const std::vector<sample::SeenToken> seen_in_prompt;  // by each continuation, at its beginning

  std::optional<absl::Time> start_time;  // when its first continuation first ran
  std::vector<std::unique_ptr<Continuation>>
      continuations;                 // by index; those after the first begin once it has its prompt
  sched::SequenceId first_sequence;  // continuation i is first_sequence + i
  sched::SequenceGroup group;        // of its continuations
  bool parked = false;               // not with the scheduler: neither own memory nor what may be leased holds it
  absl::flat_hash_set<int32_t> stop_ids;
  int64_t num_done = 0;

  /// It has no max_tokens: it ends at the model's length, or with the memory at hand.
  bool takes_what_there_is() const { return !request.max_tokens; }
  /// Of one continuation, prompt and output: what there may have to be memory for before it begins.
  int64_t tokens_to_begin() const {
    return takes_what_there_is() ? static_cast<int64_t>(request.prompt.size()) + 1 : max_total_tokens;
  }
  /// Adds the next continuation. Whole blocks of the prompt are there once for all of them.
  Continuation* Begin(int64_t block_tokens);
  /// The reason to end after `token`, the last of `continuation`.
  std::optional<FinishReason> FinishAfter(const Continuation& continuation, int32_t token) const;
  Usage UsageOf(const Continuation& continuation) const;
  int64_t output_tokens() const;
  /// Continuations that did not end by themselves, so far.
  int64_t unfinished() const { return request.n - num_done; }
};

}  // namespace swiftcache::engine::exec
