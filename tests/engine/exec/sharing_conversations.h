// SPDX-License-Identifier: Apache-2.0
// Conversations, the first of which lies in a lease and goes on.
//
//   harness.Borrow(kLease, 64);
//   Fill(harness);
//   const auto recording = Continue(harness);
//   harness.RunAll();
//   ExpectRight(harness, *recording, "");
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tests/engine/exec/sharing_harness.h"

namespace swiftcache::engine::exec {

inline constexpr int64_t kLease = 7;
inline constexpr int64_t kOutputTokens = 8;

// Several conversations, so that the first ones' blocks lie in the lease.
inline void Fill(SharingHarness& harness) {
  for (unsigned seed = 1; seed <= 4; ++seed) {
    const auto recording = harness.Add(harness.Prompt(seed), kOutputTokens);
    harness.RunAll();
    EXPECT_EQ(recording->tokens(), FakeGreedy(harness.model(), harness.Prompt(seed), kOutputTokens)) << seed;
  }
  ASSERT_GT(harness.load().kv_blocks_leased_in_used, 0);
}

// The first conversation goes on.
inline std::vector<int32_t> Again(const SharingHarness& harness) {
  std::vector<int32_t> prompt = harness.Prompt(1);
  prompt.push_back(5);
  return prompt;
}
inline std::shared_ptr<Recording> Continue(SharingHarness& harness) {
  return harness.Add(Again(harness), kOutputTokens);
}
inline void ExpectRight(SharingHarness& harness, const Recording& recording, const std::string& what) {
  EXPECT_TRUE(recording.Wait().ok()) << what << recording.Wait();
  EXPECT_EQ(recording.tokens(), FakeGreedy(harness.model(), Again(harness), kOutputTokens)) << what;
}

}  // namespace swiftcache::engine::exec
