// SPDX-License-Identifier: Apache-2.0
// How much of its arena a worker may lend, and how much it takes back when it is in need.
//
//   auto policy = CreatePolicy({.window = absl::Seconds(60)}, {.num_blocks = 1000, .block_tokens = 16});
//   policy->Report({.used_blocks = 200, .waiting_blocks = 50, .window_peak_blocks = 400, .cache_blocks = 300}, now);
//   policy->LendableBlocks(/*lent_blocks=*/0, {}, now) == 540;  // 1000 - 400 - 6 % of 1000
#pragma once

#include <cstdint>
#include <memory>

#include "absl/time/time.h"

namespace swiftcache::broker::elastic {

enum class PolicyKind { kDefault, kPaper };

struct PolicyOptions {
  PolicyKind kind = PolicyKind::kDefault;
  absl::Duration window = absl::Seconds(60);  // t of Algorithm 1
  int64_t headroom_percent = 6;               // of its arena that a worker keeps beyond what it needs; default policy
};

struct Worker {
  int64_t num_blocks = 0;    // of its arena
  int64_t block_tokens = 1;  // B_i
};

/// What a worker reports that it needs; fields as in proto ReportWindowRequest. Units: blocks of the worker, tokens.
struct Demand {
  int64_t used_blocks = 0, waiting_blocks = 0;
  int64_t window_max_request_tokens = 0;
  int64_t window_peak_blocks = 0;
  int64_t cache_blocks = 0;  // of the most recently used, that its prompts found worth keeping
};

/// MEU_i and MEU_m; {1, 1} where no borrower is named.
struct UnitBlocks {
  int64_t worker = 1, master = 1;
};

/// The policy for one worker. Pure: time is handed in and never goes back. Thread-safety: none. Errors: none; a worker
/// that has reported nothing lends nothing. Units: blocks of the worker.
class Policy {
 public:
  virtual ~Policy() = default;
  /// Replaces the previous report.
  virtual void Report(const Demand& demand, absl::Time now) = 0;
  /// How many blocks may be on lease in all, including the `lent_blocks` that are on lease now.
  virtual int64_t LendableBlocks(int64_t lent_blocks, const UnitBlocks& unit, absl::Time now) = 0;
  /// How many of the `lent_blocks` a worker that lacks `need_blocks` should take back; at most lent_blocks.
  virtual int64_t TakeBackBlocks(int64_t need_blocks, int64_t lent_blocks, const UnitBlocks& unit, absl::Time now) = 0;
};

std::unique_ptr<Policy> CreatePolicy(const PolicyOptions& options, const Worker& worker);

}  // namespace swiftcache::broker::elastic
