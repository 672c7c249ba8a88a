// SPDX-License-Identifier: Apache-2.0
#include "engine/exec/live_requests.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace swiftcache::engine::exec {
namespace {

constexpr int64_t kBlock = 4;

std::unique_ptr<LiveRequest> MakeRequest(
    int64_t id, int64_t prompt_tokens, int64_t max_total_tokens, int32_t n = 1,
    const std::function<void(Request&)>& change = [](Request&) {}) {
  Request request;
  request.request_id = std::to_string(id);
  request.prompt.resize(prompt_tokens, 1);
  request.n = n;
  request.max_tokens = max_total_tokens - prompt_tokens;
  change(request);
  auto live = std::make_unique<LiveRequest>(std::move(request), nullptr, absl::InfinitePast(), max_total_tokens);
  live->first_sequence = sched::SequenceId(100 * id);
  return live;
}

// So that the loop's thread does not sort a long prompt.
TEST(LiveRequestTest, ItKnowsFromTheStartWhatItsPromptHas) {
  Request request;
  request.prompt = {7, 3, 7};
  request.sampling.repetition_penalty = 1.5;
  LiveRequest live(std::move(request), nullptr, absl::InfinitePast(), /*max_total_tokens=*/10);
  ASSERT_EQ(live.seen_in_prompt.size(), 2u);
  EXPECT_EQ(live.seen_in_prompt[0].id, 3);
  EXPECT_EQ(live.seen_in_prompt[1].id, 7);
  EXPECT_EQ(live.Begin(kBlock)->sampling.seen().size(), 2u);
}

TEST(LengthCountsTest, TheLongestIsTheNextOnceItIsRemoved) {
  LengthCounts lengths;
  EXPECT_EQ(lengths.longest(), 0);
  for (int64_t length : {3, 900, 5, 900}) lengths.Add(length);
  EXPECT_EQ(lengths.longest(), 900);
  lengths.Remove(900);
  EXPECT_EQ(lengths.longest(), 900) << "there were two";
  lengths.Remove(900);
  EXPECT_EQ(lengths.longest(), 5);
  lengths.Remove(3);
  lengths.Remove(5);
  EXPECT_EQ(lengths.longest(), 0);
}

TEST(LiveRequestsTest, AContinuationCountsUntilItsRequestIsTaken) {
  LiveRequests requests(kBlock);
  LiveRequest& first = requests.Add(MakeRequest(1, 10, 20, /*n=*/2));
  LiveRequest& second = requests.Add(MakeRequest(2, 4, 20));
  requests.Begin(first);
  requests.Append(*requests.Begin(second), 7);
  EXPECT_EQ(requests.longest_tokens(), 10);
  Continuation* sibling = requests.Begin(first);
  requests.Append(*sibling, 7);
  sibling->done = true;
  first.num_done = 1;
  EXPECT_EQ(sibling->tokens.back(), 7);
  EXPECT_EQ(requests.longest_tokens(), 11);
  EXPECT_TRUE(requests.CheckInvariants().ok()) << requests.CheckInvariants();
  EXPECT_EQ(requests.Take(first)->continuations.size(), 2u);
  EXPECT_EQ(requests.Find("1"), nullptr);
  EXPECT_EQ(requests.longest_tokens(), 5);
  EXPECT_EQ(requests.size(), 1);
}

TEST(LiveRequestsTest, TheContinuationsOfARequestShareItsPromptAndHaveTheirOutputAlone) {
  LiveRequests requests(kBlock);
  LiveRequest& request =
      requests.Add(MakeRequest(1, 10, 20, /*n=*/2, [](Request& r) { std::iota(r.prompt.begin(), r.prompt.end(), 0); }));
  Continuation* continuations[] = {requests.Begin(request), requests.Begin(request)};
  for (int32_t i : {0, 1}) {
    requests.Append(*continuations[i], 50 + i);
    const sched::TokenList& tokens = continuations[i]->tokens;
    EXPECT_EQ(tokens.shared().data(), request.request.prompt.data());
    EXPECT_EQ(tokens.shared().size(), 8u) << "whole blocks";
    std::vector<int32_t> all;
    tokens.AppendTo(all, 0, tokens.size());
    EXPECT_EQ(all, (std::vector<int32_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 50 + i}));
  }
}

TEST(LiveRequestsTest, WithoutMaxTokensOneBeginsWhereItsPromptHasAPlace) {
  EXPECT_EQ(MakeRequest(1, 10, 20)->tokens_to_begin(), 20);
  EXPECT_EQ(MakeRequest(1, 10, 20, /*n=*/1, [](Request& r) { r.max_tokens.reset(); })->tokens_to_begin(), 11);
}

TEST(LiveRequestsTest, EachContinuationHasSeenThePromptAlone) {
  LiveRequests requests(kBlock);
  LiveRequest& request =
      requests.Add(MakeRequest(1, 10, 20, /*n=*/2, [](Request& r) { r.sampling.repetition_penalty = 1.5f; }));
  requests.Begin(request)->sampling.Observe(7);
  EXPECT_EQ(request.continuations[0]->sampling.seen().size(), 2u);
  EXPECT_EQ(requests.Begin(request)->sampling.seen().size(), 1u);
}

TEST(LiveRequestsTest, ParkedOnesAreInTheOrderOfTheirNeedAndThenOfArrival) {
  LiveRequests requests(kBlock);
  for (const auto& [id, need] : std::vector<std::pair<int64_t, int64_t>>{{1, 50}, {2, 30}, {3, 90}, {4, 30}}) {
    LiveRequest& request = requests.Add(MakeRequest(id, 10 * id, need));
    requests.Begin(request);
    requests.Park(request);
  }
  EXPECT_EQ(requests.parked_tokens(), 100);
  EXPECT_EQ(requests.most_parked().request.request_id, "3");
  std::string order;
  while (requests.any_parked()) {
    LiveRequest& least = requests.least_parked();
    order += least.request.request_id;
    if (order.size() % 2 == 0) {
      (void)requests.Take(least);  // a parked one can end too
    } else {
      requests.Unpark(least);
    }
    ASSERT_TRUE(requests.CheckInvariants().ok()) << requests.CheckInvariants();
  }
  EXPECT_EQ(order, "2413");
  EXPECT_EQ(requests.parked_tokens(), 0);
}

TEST(LiveRequestsTest, ATokenThatWasNotCountedIsFound) {
  LiveRequests requests(kBlock);
  Continuation* continuation = requests.Begin(requests.Add(MakeRequest(1, 10, 20)));
  continuation->tokens.push_back(1);
  EXPECT_EQ(requests.CheckInvariants().code(), absl::StatusCode::kInternal);
}

TEST(LiveRequestsTest, WhateverComesAndGoesTheLongestIsTheLongest) {
  for (unsigned seed = 0; seed < 20; ++seed) {
    std::mt19937 rng(seed);
    LiveRequests requests(kBlock);
    std::vector<LiveRequest*> live;
    for (int64_t i = 0; i < 400; ++i) {
      const auto pick = [&]() -> LiveRequest& { return *live[rng() % live.size()]; };
      if (live.empty() || rng() % 4 == 0) {
        live.push_back(&requests.Add(MakeRequest(i, 1 + rng() % 40, 100, 3)));
        requests.Begin(*live.back());
        if (rng() % 3 == 0) requests.Park(*live.back());
      } else if (rng() % 8 == 0) {
        LiveRequest& ended = pick();
        std::erase(live, &ended);
        (void)requests.Take(ended);
      } else if (LiveRequest& request = pick(); request.parked) {
        requests.Unpark(request);
      } else if (rng() % 5 == 0 && request.continuations.size() < 3) {
        requests.Begin(request);
      } else {
        requests.Append(*request.continuations[rng() % request.continuations.size()], 5);
      }
      int64_t longest = 0;
      for (const LiveRequest* request : live) {
        for (const auto& continuation : request->continuations) {
          longest = std::max(longest, continuation->tokens.size());
        }
      }
      ASSERT_EQ(requests.longest_tokens(), longest) << "seed " << seed << " step " << i;
      ASSERT_TRUE(requests.CheckInvariants().ok()) << requests.CheckInvariants() << " seed " << seed;
    }
  }
}

}  // namespace
}  // namespace swiftcache::engine::exec
