// SPDX-License-Identifier: Apache-2.0
// Why continuations ended, as counted.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/engine/exec/loop_harness.h"

namespace swiftcache::engine::exec {
namespace {

using ::testing::HasSubstr;

void ExpectFinished(const LoopHarness& harness, int64_t stop, int64_t length, int64_t abort) {
  for (const char* name : {"swiftcache_requests_finished_total", "vllm:request_success_total"}) {
    for (const auto& [reason, count] :
         {std::pair("stop", stop), std::pair("length", length), std::pair("abort", abort)}) {
      EXPECT_THAT(harness.Scrape(), HasSubstr(absl::StrCat(name, "{finished_reason=\"", reason, "\"} ", count, "\n")));
    }
  }
}

Request AskedFor(std::string id, int64_t max_tokens, int32_t n = 1) {
  Request request = Greedy({1, 2, 3, 4, 5}, max_tokens);
  request.request_id = std::move(id);
  request.n = n;
  return request;
}

TEST(FinishReasonsTest, EveryContinuationThatEndsHasOne) {
  LoopHarness harness({.model = kSmallModel});
  ExpectFinished(harness, 0, 0, 0);
  (void)harness.Add(AskedFor("length", 4, /*n=*/2));
  Request stops = AskedFor("stop", 4);
  stops.stop_token_ids = FakeGreedy(kSmallModel, stops.prompt, 2);
  (void)harness.Add(stops);
  harness.RunAll();
  ExpectFinished(harness, 1, 2, 0);
}

TEST(FinishReasonsTest, WhatAClientEndsAndWhatAShutdownCutsIsAborted) {
  LoopHarness harness({.model = kSmallModel});
  (void)harness.Add(AskedFor("client", 50, /*n=*/3));
  (void)harness.Add(AskedFor("cut", 50, /*n=*/2));
  for (int i = 0; i < 3; ++i) harness.Step();
  harness.Cancel("client");
  ExpectFinished(harness, 0, 0, 3);
  (void)harness.Add(AskedFor("waits", 50));
  harness.loop().EndAll();
  ExpectFinished(harness, 0, 0, 5);
  EXPECT_THAT(harness.Scrape(), HasSubstr("swiftcache_requests_total{status=\"UNAVAILABLE\"} 1\n"));
}

}  // namespace
}  // namespace swiftcache::engine::exec
