// SPDX-License-Identifier: Apache-2.0
// The engine's metrics, each under our name and, where routers and dashboards scrape one, under vLLM's.
//
//   EngineMetrics metrics(registry, {.block_tokens = 16, .num_blocks = 1000});
//   metrics.FirstToken(absl::Milliseconds(20));
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/metrics/metrics.h"
#include "engine/exec/engine_load.h"
#include "engine/exec/prefill_times.h"
#include "engine/exec/request.h"
#include "engine/meter/interference_meter.h"
#include "engine/sched/scheduler.h"

namespace swiftcache::engine::exec {

/// swiftcache_kv_blocks has the states `used` (held by a sequence) and `free` (everything else, so that the two add up
/// to the arena): blocks that only the prefix cache holds are free, since they are given away on demand;
/// swiftcache_kv_cached_blocks says how many those are.
/// Thread-safety: safe. Ownership: borrows the registry, which must outlive it. Errors: none. Units: seconds, tokens,
/// blocks.
class EngineMetrics {
 public:
  struct Geometry {
    int64_t block_tokens = 0;
    int64_t num_blocks = 0;
    const char* transport = "none";  // of leases
  };
  EngineMetrics(Metrics& registry, const Geometry& geometry);

  void Started(absl::Duration queue_time);
  void FirstToken(absl::Duration since_arrival);
  void NextToken(absl::Duration since_last);
  /// Tokens of answers.
  void Generated(int64_t tokens);
  /// The prompt of one continuation: `cached_tokens` of it came from the prefix cache, `leased_tokens` of those from
  /// leases.
  void Prompt(int64_t prompt_tokens, int64_t cached_tokens, int64_t leased_tokens);
  /// Of a request that got its first token.
  void Prefilled(const PrefillTimes& times);
  /// A step streamed KV of leases through local slots, and stood still for it that long.
  void Stalled(absl::Duration stall);
  /// All that was needed of what was lent was the owner's again so long after that.
  void Reclaimed(absl::Duration since_needed);
  /// A step read KV of leases where it lies.
  void ReadInPlace(int64_t bytes);
  /// A step that has its tokens, with all its `time`: also of the parts before that were cut short and it goes on from.
  void Computed(absl::Duration time, const sched::StepPlan& plan);
  /// A try of a step that has none, as a lease had to be dealt with first.
  void CutShort();
  /// A continuation that got all its tokens: `decoding` from the first to the last.
  void Finished(int64_t prompt_tokens, int64_t output_tokens, absl::Duration decoding);
  /// A request that was not taken. REQUIRES: !why.ok().
  void Refused(const absl::Status& why);
  /// The same, because of its decode bound.
  void RefusedAsTooSlow();
  /// One that waited in vain for memory that others lend. `cut`: it ended with the tokens that it had; else it was refused.
  void Starved(bool cut);
  /// What borrowers cost this engine. swiftcache_interference_ratio is absent where there is none. One call at a time.
  void SetInterference(const meter::InterferenceMeter::Estimate& prefill,
                       const meter::InterferenceMeter::Estimate& decode);
  /// The same in seconds, since the start. One call at a time.
  void SetLeaseTraffic(const meter::InterferenceMeter::TrafficSeconds& prefill,
                       const meter::InterferenceMeter::TrafficSeconds& decode);
  void Ended(const absl::Status& status, absl::Duration since_arrival);
  /// So many continuations have ended for that reason.
  void FinishedFor(FinishReason why, int64_t continuations = 1);
  void Preempted(int64_t sequences);
  /// Gauges, and the counters that it has as totals. One call at a time.
  void SetLoad(const EngineLoad& load);

 private:
  // A metric by our name, and by vLLM's for the same.
  struct CounterPair {
    CounterPair(prometheus::Counter& ours, prometheus::Counter& vllm) : ours(ours), vllm(vllm) {}
    CounterPair(Metrics& metrics, const char* our_name, const char* vllm_name, const char* help,
                const Metrics::Labels& labels = {});
    prometheus::Counter& ours;
    prometheus::Counter& vllm;
    void Increment(double by) {
      ours.Increment(by);
      vllm.Increment(by);
    }
  };
  struct GaugePair {
    GaugePair(Metrics& metrics, const char* our_name, const char* vllm_name, const char* help);
    prometheus::Gauge& ours;
    prometheus::Gauge& vllm;
    void Set(double value) {
      ours.Set(value);
      vllm.Set(value);
    }
  };
  struct HistogramPair {
    HistogramPair(Metrics& metrics, const char* our_name, const char* vllm_name, const char* help,
                  const std::vector<double>& buckets);
    prometheus::Histogram& ours;
    prometheus::Histogram& vllm;
    void Observe(absl::Duration value) {
      ours.Observe(absl::ToDoubleSeconds(value));
      vllm.Observe(absl::ToDoubleSeconds(value));
    }
  };

  // What one phase is slowed down by borrowers.
  struct Interference {
    Interference(Metrics& metrics, const char* phase);
    void SetEstimate(const meter::InterferenceMeter::Estimate& estimate);
    void SetTraffic(const meter::InterferenceMeter::TrafficSeconds& seconds);
    OptionalGauge ratio;
    prometheus::Gauge& comparisons;
    prometheus::Counter &step_seconds, &expected_seconds;
  };
  // By why; all are there from the start, so that the first refusal is an increase.
  struct Refusals {
    explicit Refusals(Metrics& metrics);
    prometheus::Counter &invalid, &too_long, &too_slow, &queue_full, &id_in_use, &draining;
  };

  Metrics& registry_;
  HistogramPair time_to_first_token_, inter_token_latency_, queue_time_, e2e_latency_;
  prometheus::Histogram &kv_stall_, &reclaim_wait_, &prefill_queue_, &prefill_load_, &prefill_execute_, &prefill_store_,
      &time_per_output_token_, &prompt_length_, &generation_length_, &step_seconds_, &step_sequences_, &step_tokens_;
  CounterPair prompt_tokens_, generation_tokens_, preemptions_, stopped_, length_, aborted_;
  prometheus::Counter &computed_tokens_, &local_tokens_, &donor_tokens_, &cache_queries_, &cache_hits_, &steps_,
      &steps_cut_, &evictions_, &read_in_place_, &starved_refused_, &starved_cut_, &saved_tokens_,
      &again_for_loans_tokens_, &again_for_losses_tokens_;
  GaugePair running_, waiting_;
  prometheus::Gauge &free_blocks_, &used_blocks_, &leased_out_blocks_, &withheld_blocks_, &slot_blocks_,
      &leased_in_blocks_, &leased_in_used_blocks_, &cached_blocks_, &cache_usage_;
  OptionalGauge decode_bound_;
  Interference prefill_interference_, decode_interference_;
  Refusals refusals_;
};

}  // namespace swiftcache::engine::exec
