// SPDX-License-Identifier: Apache-2.0
#include "engine/exec/engine_metrics.h"

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

namespace swiftcache::engine::exec {
namespace {

const char kBlocksHelp[] =
    "Blocks of KV: of the own arena free, used, leased_out, slots through which leased ones are streamed, or withheld "
    "until there is other memory to lay in their place, of others' arenas leased_in; those that only the prefix cache "
    "holds count as free";
const char kUsageHelp[] =
    "Share of the KV blocks that requests hold, 0 to 1: of own ones, what is lent included, and of leased ones";
const char kDecodeBoundHelp[] =
    "Least time of an output token of the longest sequence that own memory and leases hold: its KV that must lie in "
    "leases over the rate of the link; absent without leases, a link, or a known rate";
const char kSourceHelp[] = "Prompt tokens by where their KV came from";
const char kInterferenceHelp[] =
    "Latency without lease traffic over latency under it, 1 is none; absent without enough steps of both kinds";
const char kComparisonsHelp[] = "Steps under lease traffic that interference_ratio rests upon, or would";
const char kPrefillHelp[] =
    "Time from arrival to first token by phase: queue and execute, and load and store as the transport took beside "
    "them";
const char kPrefill[] = "swiftcache_prefill_phase_seconds";
const char kTrafficHelp[] = "Time of steps under lease traffic that could be compared with steps without";
const char kExpectedHelp[] = "What the same steps would have taken without lease traffic";
const char kPreemptionsHelp[] = "Sequences that lost their blocks for another";
const char kFinished[] = "swiftcache_requests_finished_total", kVllmFinished[] = "vllm:request_success_total";
const char kFinishedHelp[] =
    "Continuations that ended, by why; abort: by the client, or cut as the engine ended; those with errors left out";
const char kStarved[] = "swiftcache_requests_starved_total";
const char kStarvedHelp[] =
    "Requests that ended for want of memory that others lend: refused, or continuations cut at what there was";
const char kSource[] = "swiftcache_prompt_tokens_by_source_total";
const char kSharing[] = "swiftcache_sharing_tokens_total";
const char kSharingHelp[] =
    "Against own memory alone: prompt tokens that borrowing saved, tokens computed again as own memory was lent, or as "
    "a "
    "lease ended with them";

// Finer below than those of latencies: what is measured is hidden, or nearly.
const std::vector<double> kKvBuckets = {1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 0.01, 0.025,
                                        0.05, 0.1,    0.25, 0.5,  1,      2.5,  5,    10,     25,   50,   100};
const std::vector<double> kLengthBuckets = {1,    2,    5,    10,    20,    50,    100,    200,   500,
                                            1000, 2000, 5000, 10000, 20000, 50000, 100000, 200000};
const std::vector<double> kSequenceBuckets = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024};

prometheus::Counter& EndedCounter(Metrics& metrics, absl::StatusCode code) {
  return metrics.Counter("swiftcache_requests_total", "Requests that ended, by how",
                         {{"status", absl::StatusCodeToString(code)}});
}

prometheus::Counter& RefusedCounter(Metrics& metrics, const char* reason) {
  return metrics.Counter("swiftcache_requests_refused_total", "Requests that were not taken, by why",
                         {{"reason", reason}});
}

}  // namespace

EngineMetrics::CounterPair::CounterPair(Metrics& metrics, const char* our_name, const char* vllm_name, const char* help,
                                        const Metrics::Labels& labels)
    : ours(metrics.Counter(our_name, help, labels)), vllm(metrics.Counter(vllm_name, help, labels)) {}

EngineMetrics::GaugePair::GaugePair(Metrics& metrics, const char* our_name, const char* vllm_name, const char* help)
    : ours(metrics.Gauge(our_name, help)), vllm(metrics.Gauge(vllm_name, help)) {}

EngineMetrics::HistogramPair::HistogramPair(Metrics& metrics, const char* our_name, const char* vllm_name,
                                            const char* help, const std::vector<double>& buckets)
    : ours(metrics.Histogram(our_name, help, buckets)), vllm(metrics.Histogram(vllm_name, help, buckets)) {}

EngineMetrics::EngineMetrics(Metrics& m, const Geometry& geometry)
    : registry_(m),
      time_to_first_token_(m, "swiftcache_time_to_first_token_seconds", "vllm:time_to_first_token_seconds",
                           "From arrival to the first token", kTtftBuckets),
      inter_token_latency_(m, "swiftcache_inter_token_latency_seconds", "vllm:inter_token_latency_seconds",
                           "Between tokens", kInterTokenBuckets),
      queue_time_(m, "swiftcache_request_queue_time_seconds", "vllm:request_queue_time_seconds",
                  "From arrival to the first step", kRequestBuckets),
      e2e_latency_(m, "swiftcache_e2e_request_latency_seconds", "vllm:e2e_request_latency_seconds",
                   "From arrival to the last token", kRequestBuckets),
      kv_stall_(m.Histogram("swiftcache_kv_stall_seconds",
                            "Time that a step stood still for KV of leases that it streams", kKvBuckets)),
      reclaim_wait_(m.Histogram("swiftcache_reclaim_wait_seconds",
                                "From the need of memory that is lent to the return of all of it", kKvBuckets)),
      prefill_queue_(m.Histogram(kPrefill, kPrefillHelp, kKvBuckets, {{"phase", "queue"}})),
      prefill_load_(m.Histogram(kPrefill, kPrefillHelp, kKvBuckets, {{"phase", "load"}})),
      prefill_execute_(m.Histogram(kPrefill, kPrefillHelp, kKvBuckets, {{"phase", "execute"}})),
      prefill_store_(m.Histogram(kPrefill, kPrefillHelp, kKvBuckets, {{"phase", "store"}})),
      time_per_output_token_(m.Histogram("swiftcache_time_per_output_token_seconds",
                                         "Of a continuation: from the first to the last token, by the tokens between",
                                         kInterTokenBuckets)),
      prompt_length_(m.Histogram("swiftcache_request_prompt_tokens", "Length of prompts answered", kLengthBuckets)),
      generation_length_(
          m.Histogram("swiftcache_request_generation_tokens", "Length of continuations", kLengthBuckets)),
      step_seconds_(m.Histogram("swiftcache_step_seconds",
                                "Time that a step computed, with the parts before it that it goes on from",
                                kKvBuckets)),
      step_sequences_(m.Histogram("swiftcache_step_sequences", "Sequences in a step", kSequenceBuckets)),
      step_tokens_(m.Histogram("swiftcache_step_tokens", "Tokens computed in a step", kLengthBuckets)),
      prompt_tokens_(m, "swiftcache_prompt_tokens_total", "vllm:prompt_tokens_total",
                     "Prompt tokens of continuations that got a token"),
      generation_tokens_(m, "swiftcache_generation_tokens_total", "vllm:generation_tokens_total", "Tokens generated"),
      preemptions_{m.Counter("swiftcache_preemptions_total", kPreemptionsHelp, {{"action", "recompute"}}),
                   m.Counter("vllm:num_preemptions_total", kPreemptionsHelp)},
      stopped_(m, kFinished, kVllmFinished, kFinishedHelp, {{"finished_reason", "stop"}}),
      length_(m, kFinished, kVllmFinished, kFinishedHelp, {{"finished_reason", "length"}}),
      aborted_(m, kFinished, kVllmFinished, kFinishedHelp, {{"finished_reason", "abort"}}),
      computed_tokens_(m.Counter(kSource, kSourceHelp, {{"source", "computed"}})),
      local_tokens_(m.Counter(kSource, kSourceHelp, {{"source", "local"}})),
      donor_tokens_(m.Counter(kSource, kSourceHelp, {{"source", "donor"}})),
      cache_queries_(m.Counter("vllm:prefix_cache_queries_total", "Prompt tokens looked up in the prefix cache")),
      cache_hits_(m.Counter("vllm:prefix_cache_hits_total", "Prompt tokens found in the prefix cache")),
      steps_(m.Counter("swiftcache_steps_total", "Steps of the loop, without what was cut short")),
      steps_cut_(m.Counter("swiftcache_steps_cut_total", "Times that a step was cut short for a lease")),
      evictions_(m.Counter("swiftcache_kv_blocks_evicted_total", "Cached blocks given up for their room")),
      read_in_place_(
          m.Counter("swiftcache_kv_read_in_place_bytes_total", "KV of leases that steps read where it lies")),
      starved_refused_(m.Counter(kStarved, kStarvedHelp, {{"end", "refused"}})),
      starved_cut_(m.Counter(kStarved, kStarvedHelp, {{"end", "cut"}})),
      saved_tokens_(m.Counter(kSharing, kSharingHelp, {{"effect", "saved"}})),
      again_for_loans_tokens_(m.Counter(kSharing, kSharingHelp, {{"effect", "again_for_loans"}})),
      again_for_losses_tokens_(m.Counter(kSharing, kSharingHelp, {{"effect", "again_for_losses"}})),
      running_(m, "swiftcache_running_requests", "vllm:num_requests_running", "Requests with a sequence in the step"),
      waiting_(m, "swiftcache_waiting_requests", "vllm:num_requests_waiting", "Requests that wait for their turn"),
      free_blocks_(m.Gauge("swiftcache_kv_blocks", kBlocksHelp, {{"state", "free"}})),
      used_blocks_(m.Gauge("swiftcache_kv_blocks", kBlocksHelp, {{"state", "used"}})),
      leased_out_blocks_(m.Gauge("swiftcache_kv_blocks", kBlocksHelp, {{"state", "leased_out"}})),
      withheld_blocks_(m.Gauge("swiftcache_kv_blocks", kBlocksHelp, {{"state", "withheld"}})),
      slot_blocks_(m.Gauge("swiftcache_kv_blocks", kBlocksHelp, {{"state", "slots"}})),
      leased_in_blocks_(m.Gauge("swiftcache_kv_blocks", kBlocksHelp, {{"state", "leased_in"}})),
      leased_in_used_blocks_(m.Gauge("swiftcache_kv_leased_in_used_blocks", "Leased blocks that hold KV")),
      cached_blocks_(
          m.Gauge("swiftcache_kv_cached_blocks", "Free blocks that the prefix cache holds until they are needed")),
      cache_usage_(m.Gauge("vllm:kv_cache_usage_perc", kUsageHelp)),
      decode_bound_(
          m.OptionalGauge("swiftcache_decode_bound_seconds", kDecodeBoundHelp, {{"transport", geometry.transport}})),
      prefill_interference_(m, "prefill"),
      decode_interference_(m, "decode"),
      refusals_(m) {
  m.Gauge("vllm:cache_config_info", "Geometry of the KV cache, in its labels",
          {{"block_size", absl::StrCat(geometry.block_tokens)}, {"num_gpu_blocks", absl::StrCat(geometry.num_blocks)}})
      .Set(1);
  using Code = absl::StatusCode;  // from zero, so that the first of them is an increase
  for (const Code code : {Code::kOk, Code::kCancelled, Code::kOutOfRange, Code::kUnavailable, Code::kInternal}) {
    EndedCounter(m, code);
  }
}

void EngineMetrics::Started(absl::Duration queue_time) { queue_time_.Observe(queue_time); }

void EngineMetrics::FirstToken(absl::Duration since_arrival) { time_to_first_token_.Observe(since_arrival); }

void EngineMetrics::NextToken(absl::Duration since_last) { inter_token_latency_.Observe(since_last); }

void EngineMetrics::Generated(int64_t tokens) { generation_tokens_.Increment(tokens); }

void EngineMetrics::Prompt(int64_t prompt_tokens, int64_t cached_tokens, int64_t leased_tokens) {
  prompt_tokens_.Increment(prompt_tokens);
  local_tokens_.Increment(cached_tokens - leased_tokens);
  donor_tokens_.Increment(leased_tokens);
  computed_tokens_.Increment(prompt_tokens - cached_tokens);
  cache_queries_.Increment(prompt_tokens);
  cache_hits_.Increment(cached_tokens);
}

void EngineMetrics::Prefilled(const PrefillTimes& times) {
  prefill_queue_.Observe(absl::ToDoubleSeconds(times.queue));
  prefill_load_.Observe(absl::ToDoubleSeconds(times.load));
  prefill_execute_.Observe(absl::ToDoubleSeconds(times.execute));
  prefill_store_.Observe(absl::ToDoubleSeconds(times.store));
}

void EngineMetrics::Reclaimed(absl::Duration since_needed) {
  reclaim_wait_.Observe(absl::ToDoubleSeconds(since_needed));
}

void EngineMetrics::Stalled(absl::Duration stall) { kv_stall_.Observe(absl::ToDoubleSeconds(stall)); }

void EngineMetrics::ReadInPlace(int64_t bytes) { read_in_place_.Increment(static_cast<double>(bytes)); }

void EngineMetrics::SetInterference(const meter::InterferenceMeter::Estimate& prefill,
                                    const meter::InterferenceMeter::Estimate& decode) {
  prefill_interference_.SetEstimate(prefill);
  decode_interference_.SetEstimate(decode);
}

void EngineMetrics::SetLeaseTraffic(const meter::InterferenceMeter::TrafficSeconds& prefill,
                                    const meter::InterferenceMeter::TrafficSeconds& decode) {
  prefill_interference_.SetTraffic(prefill);
  decode_interference_.SetTraffic(decode);
}

EngineMetrics::Interference::Interference(Metrics& m, const char* phase)
    : ratio(m.OptionalGauge("swiftcache_interference_ratio", kInterferenceHelp, {{"phase", phase}})),
      comparisons(m.Gauge("swiftcache_interference_comparisons", kComparisonsHelp, {{"phase", phase}})),
      step_seconds(m.Counter("swiftcache_lease_traffic_step_seconds_total", kTrafficHelp, {{"phase", phase}})),
      expected_seconds(
          m.Counter("swiftcache_lease_traffic_expected_step_seconds_total", kExpectedHelp, {{"phase", phase}})) {}

void EngineMetrics::Interference::SetEstimate(const meter::InterferenceMeter::Estimate& estimate) {
  ratio.Set(estimate.ratio);
  comparisons.Set(static_cast<double>(estimate.comparisons));
}

void EngineMetrics::Interference::SetTraffic(const meter::InterferenceMeter::TrafficSeconds& seconds) {
  step_seconds.Increment(seconds.actual - step_seconds.Value());
  expected_seconds.Increment(seconds.expected - expected_seconds.Value());
}

void EngineMetrics::Computed(absl::Duration time, const sched::StepPlan& plan) {
  int64_t tokens = 0;
  for (const sched::Chunk& chunk : plan.chunks) tokens += chunk.num_tokens;
  steps_.Increment();
  step_seconds_.Observe(absl::ToDoubleSeconds(time));
  step_sequences_.Observe(static_cast<double>(plan.chunks.size()));
  step_tokens_.Observe(static_cast<double>(tokens));
}

void EngineMetrics::CutShort() { steps_cut_.Increment(); }

void EngineMetrics::Finished(int64_t prompt_tokens, int64_t output_tokens, absl::Duration decoding) {
  prompt_length_.Observe(static_cast<double>(prompt_tokens));
  generation_length_.Observe(static_cast<double>(output_tokens));
  if (output_tokens < 2) return;
  time_per_output_token_.Observe(absl::ToDoubleSeconds(decoding) / static_cast<double>(output_tokens - 1));
}

EngineMetrics::Refusals::Refusals(Metrics& m)
    : invalid(RefusedCounter(m, "invalid")),
      too_long(RefusedCounter(m, "too_long")),
      too_slow(RefusedCounter(m, "too_slow")),
      queue_full(RefusedCounter(m, "queue_full")),
      id_in_use(RefusedCounter(m, "id_in_use")),
      draining(RefusedCounter(m, "draining")) {}

void EngineMetrics::Refused(const absl::Status& why) {
  switch (why.code()) {
    case absl::StatusCode::kOutOfRange:
      return refusals_.too_long.Increment();
    case absl::StatusCode::kResourceExhausted:
      return refusals_.queue_full.Increment();
    case absl::StatusCode::kAlreadyExists:
      return refusals_.id_in_use.Increment();
    case absl::StatusCode::kUnavailable:
      return refusals_.draining.Increment();
    default:
      return refusals_.invalid.Increment();
  }
}

void EngineMetrics::RefusedAsTooSlow() { refusals_.too_slow.Increment(); }

void EngineMetrics::Starved(bool cut) { (cut ? starved_cut_ : starved_refused_).Increment(); }

void EngineMetrics::Ended(const absl::Status& status, absl::Duration since_arrival) {
  if (status.ok()) e2e_latency_.Observe(since_arrival);
  EndedCounter(registry_, status.code()).Increment();
}

void EngineMetrics::FinishedFor(FinishReason why, int64_t continuations) {
  switch (why) {
    case FinishReason::kStop:
      return stopped_.Increment(static_cast<double>(continuations));
    case FinishReason::kLength:
      return length_.Increment(static_cast<double>(continuations));
    case FinishReason::kCancelled:
      return aborted_.Increment(static_cast<double>(continuations));
  }
}

void EngineMetrics::Preempted(int64_t sequences) {
  if (sequences > 0) preemptions_.Increment(sequences);
}

void EngineMetrics::SetLoad(const EngineLoad& load) {
  running_.Set(load.running_requests);
  waiting_.Set(load.waiting_requests);
  free_blocks_.Set(load.kv_blocks_free + load.kv_blocks_cached);
  used_blocks_.Set(load.kv_blocks_used);
  leased_out_blocks_.Set(load.kv_blocks_leased_out);
  withheld_blocks_.Set(load.kv_blocks_withheld);
  leased_in_blocks_.Set(load.kv_blocks_leased_in);
  leased_in_used_blocks_.Set(load.kv_blocks_leased_in_used);
  cached_blocks_.Set(load.kv_blocks_cached);
  slot_blocks_.Set(load.kv_blocks_slots);
  // What is lent is room, as what is cached is: it comes back when a request needs it.
  const int64_t usable =
      load.kv_blocks_total - load.kv_blocks_slots - load.kv_blocks_withheld + load.kv_blocks_leased_in;
  const int64_t held = load.kv_blocks_used + load.kv_blocks_leased_in_held;
  cache_usage_.Set(static_cast<double>(held) / static_cast<double>(std::max<int64_t>(1, usable)));
  decode_bound_.Set(load.decode_bound ? std::optional(absl::ToDoubleSeconds(*load.decode_bound)) : std::nullopt);
  RaiseTo(evictions_, load.evicted_blocks_total);
  RaiseTo(saved_tokens_, load.sharing.saved_tokens);
  RaiseTo(again_for_loans_tokens_, load.sharing.again_for_loans_tokens);
  RaiseTo(again_for_losses_tokens_, load.sharing.again_for_losses_tokens);
}

}  // namespace swiftcache::engine::exec
