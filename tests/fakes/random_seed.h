// SPDX-License-Identifier: Apache-2.0
// A seed of its own for each run of a test, which is printed with the line that runs it again.
//
//   std::mt19937 random(RandomSeed());   // seed 7; again: TEST_SEED=7 kv_test --gtest_filter='TreeTest.IsAsTheModelSays'
#pragma once

#include <errno.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <iostream>
#include <random>
#include <string>

#include "tests/fakes/environment.h"

namespace swiftcache {

/// The line that runs the test that is running with this seed alone.
inline std::string Again(uint32_t seed) {
  const testing::TestInfo& test = *testing::UnitTest::GetInstance()->current_test_info();
  return "again: TEST_SEED=" + std::to_string(seed) + " " + program_invocation_short_name + " --gtest_filter='" +
         test.test_suite_name() + "." + test.name() + "'";
}

/// TEST_SEED, or any.
inline uint32_t RandomSeed() {
  const uint32_t seed = static_cast<uint32_t>(FromEnvironment("TEST_SEED").value_or(std::random_device()()));
  std::cout << "seed " << seed << "; " << Again(seed) << "\n";
  return seed;
}

}  // namespace swiftcache
