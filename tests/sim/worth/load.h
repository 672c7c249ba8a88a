// SPDX-License-Identifier: Apache-2.0
// What clients ask of one engine: requests at times that no policy changes, made from a seed.
//
//   Load load = MakeLoad({.kind = LoadKind::kChat, .conversations = 12}, /*seed=*/7, /*seconds=*/1800);
//   std::vector<int32_t> prompt = TokensOf(load, load.requests[0]);
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace swiftcache::sim::worth {

enum class LoadKind { kChat, kSummary };

/// Thread-safety: a value. Units: as named; times in seconds, which are means of exponential distributions.
struct LoadSpec {
  LoadKind kind = LoadKind::kChat;
  int64_t system_tokens = 64;  // that all prompts begin with
  // Chat: so many conversations at a time. Each takes its next turn some time after the last; one that ends gives way to
  // a new one.
  int64_t conversations = 8, first_tokens = 600, turn_tokens = 60, answer_tokens = 96;
  int64_t most_tokens = 4000;  // a conversation that has so many ends
  double turns = 12, think_seconds = 20;
  double zipf = 0;  // of how often a conversation talks: 0 all alike, 1 the n-th an n-th as often
  // Summary: prompts that nobody sends again.
  double per_second = 0;
  int64_t prompt_tokens = 2000, summary_tokens = 64;
  // Nobody asks for anything in the second part of each period, which begins at `shift`; 0: always.
  double on_seconds = 0, off_seconds = 0, shift = 0;
  // So many prompts of prompt_tokens at once, every so often; 0: never.
  double burst_every = 0;
  int64_t burst = 0;
};

struct Request {
  double at = 0;
  int64_t conversation = 0;  // unique in its load
  int64_t prompt_tokens = 0, answer_tokens = 0;
};

struct Load {
  int64_t system_tokens = 0;
  std::vector<Request> requests;  // by time
};

Load MakeLoad(const LoadSpec& spec, uint64_t seed, double seconds);

/// The first `count` tokens of a conversation: what was said does not depend on when it is asked for.
std::vector<int32_t> TokensOf(const Load& load, int64_t conversation, int64_t count);

}  // namespace swiftcache::sim::worth
