// SPDX-License-Identifier: Apache-2.0
// The engine without its doors: requests of token ids in, token events out, one loop thread that owns scheduler, block
// tables, prefix tree and sequences.
//
//   ASSIGN_OR_RETURN(Reservation reservation, Engine::Reserve(options, geometry));
//   auto engine = Engine::Create(options, std::move(reservation), std::move(model), std::nullopt, clock, metrics);
//   engine->Start();
//   RETURN_IF_ERROR(engine->Submit(std::move(request), std::move(sink)));
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/units.h"
#include "common/metrics/metrics.h"
#include "engine/backend/kv_layout.h"
#include "engine/coordinator/coordinator.h"
#include "engine/coordinator/loop_message.h"
#include "engine/kv/arena.h"
#include "engine/models/model.h"
#include "engine/sample/sampling_params.h"
#include "engine/transport/transport.h"

namespace swiftcache::engine::exec {

/// How blocks in leases are read: streamed through local slots layer by layer, or where they are mapped. kAuto: in
/// place.
enum class StreamMode { kAuto, kLsc, kInPlace };

struct EngineOptions {
  int64_t kv_cache_bytes = 0;
  backend::KvDtype kv_cache_dtype = backend::KvDtype::kBf16;
  int64_t block_tokens = 16;
  int64_t max_num_seqs = 64;
  int64_t max_num_batched_tokens = 512;
  int64_t max_model_len_tokens = 0;  // 0: what the model allows
  int64_t max_waiting_requests = 1024;
  bool enable_prefix_caching = true;
  std::vector<int32_t> eos_ids = {};
  // Sharing of KV memory with other engines.
  bool share = false;
  bool may_borrow() const { return share && enable_prefix_caching; }  // only what the cache knows can be spilled
  StreamMode stream = StreamMode::kAuto;
  bool scrub_on_return = true;
  int64_t max_tokens_on_leases = 256;                    // of a step that reads leases: keeps a layer of it short
  int64_t clear_bytes_at_once = 32 * kMiB;               // of what is to be lent, between two steps
  absl::Duration scale_down_window = absl::Seconds(60);  // Algorithm 1's t
  absl::Duration lease_patience = absl::Seconds(10);     // of a request that own and leased memory cannot hold yet
};

struct Request {
  std::string request_id;  // unique among live requests
  std::string traceparent;
  std::vector<int32_t> prompt;
  sample::SamplingParams sampling;
  std::optional<int64_t> max_tokens;  // none: what max_model_len leaves
  std::vector<int32_t> stop_token_ids;
  bool ignore_eos = false;
  int32_t n = 1;
  std::string cache_salt;
  int32_t priority = 0;
};

struct TokenLogprob {
  int32_t token_id = 0;
  float logprob = 0;
  std::vector<std::pair<int32_t, float>> top;
};

enum class FinishReason { kStop, kLength, kCancelled };

struct Usage {
  int64_t prompt_tokens = 0, completion_tokens = 0;
  int64_t cached_local_tokens = 0, cached_donor_tokens = 0;  // prompt tokens whose KV came from the prefix cache
  absl::Duration time_to_first_token = {}, queue_time = {};
};

/// New tokens of one continuation; the last one of an index has finish, the first and the last have usage.
struct TokenEvent {
  int32_t index = 0;
  std::vector<int32_t> token_ids = {};
  std::vector<TokenLogprob> logprobs = {};
  std::optional<FinishReason> finish = {};
  std::optional<Usage> usage = {};
};

/// Where a request's events go. Called by the loop thread: must not block. Destroyed after the last event.
class ResponseSink {
 public:
  virtual ~ResponseSink() = default;
  virtual void OnTokens(TokenEvent event) = 0;
  /// After the last OnTokens, exactly once: OK, CANCELLED, or what went wrong. The request's blocks are free by then,
  /// and its id may be used again.
  virtual void OnDone(absl::Status status) = 0;
};

/// A snapshot for heartbeats, metrics and tests. Units: as named.
/// Every block is used (held by a sequence), cached (held by the prefix cache alone, given away on demand) or free.
struct EngineLoad {
  int64_t running_requests = 0, waiting_requests = 0;
  int64_t kv_blocks_total = 0, kv_blocks_used = 0, kv_blocks_cached = 0, kv_blocks_free = 0;  // of the own arena
  int64_t kv_blocks_leased_out = 0;                               // lent to others: in none of the other three
  int64_t kv_blocks_leased_in = 0, kv_blocks_leased_in_used = 0;  // of others; used: by sequences or the prefix cache
  int64_t steps_total = 0, preemptions_total = 0, evicted_blocks_total = 0;
  int64_t prompt_tokens_computed = 0, prompt_tokens_local = 0, prompt_tokens_donor = 0;  // since the start, by source
  int64_t reclaims = 0;  // leases taken back in need, and how long the last took
  absl::Duration last_reclaim;
  int64_t progress = 0;  // counts up with every step and every layer of it, also within a step
};

/// An engine's memory and limits, before there is a model. Ownership: owns the arena, which keeps its address. Units:
/// tokens.
struct Reservation {
  std::unique_ptr<kv::Arena> arena;
  backend::KvLayout layout;
  int64_t max_model_len_tokens = 0;  // what model, option and arena allow
};

/// With what an engine lends and leases memory. Ownership: borrows; outlives the engine's Drain.
struct SharingParts {
  transport::Transport* transport = nullptr;
  coordinator::Coordinator* coordinator = nullptr;
};

/// Thread-safety: Submit, Cancel, Tell, Load, Drain from any thread. Ownership: owns model, arena, loop thread.
/// Errors: as documented per function; a request's own failure reaches its sink.
class Engine {
 public:
  /// What can fail, before there is a model: a server that does this first fails before it opens a port.
  /// RESOURCE_EXHAUSTED: kv_cache_bytes is not to be had (reserved here, so never a SIGBUS later). INVALID_ARGUMENT: an
  /// option out of range, an arena smaller than one block; names the flag and the remedy.
  static absl::StatusOr<Reservation> Reserve(const EngineOptions& options, const models::ModelGeometry& geometry);
  /// `sharing`: there where options.share is true, and only there. REQUIRES: reserved with the same options, for the
  /// geometry of this model.
  static std::unique_ptr<Engine> Create(const EngineOptions& options, Reservation reservation,
                                        std::unique_ptr<models::Model> model,
                                        const std::optional<SharingParts>& sharing, const Clock& clock,
                                        Metrics& metrics);
  /// Both, for an engine that shares nothing. Errors: Reserve's. REQUIRES: !options.share.
  static absl::StatusOr<std::unique_ptr<Engine>> Create(const EngineOptions& options,
                                                        std::unique_ptr<models::Model> model, const Clock& clock,
                                                        Metrics& metrics);
  virtual ~Engine() = default;

  /// Starts the loop thread. Called once.
  virtual void Start() = 0;
  /// INVALID_ARGUMENT, OUT_OF_RANGE (prompt longer than max_model_len or the arena), RESOURCE_EXHAUSTED (queue full),
  /// UNAVAILABLE (draining), ALREADY_EXISTS (a live request of that id). On error the sink is never called.
  virtual absl::Status Submit(Request request, std::unique_ptr<ResponseSink> sink) = 0;
  /// Ends a request within one step; its sink gets CANCELLED. Unknown ids are ignored.
  virtual void Cancel(const std::string& request_id) = 0;
  /// The coordinator's push function. A step under way hears at once what concerns it, the loop after the step. From the
  /// engine's creation to its end; does not block.
  virtual void Tell(coordinator::LoopMessage message) = 0;
  virtual EngineLoad Load() const = 0;
  virtual const backend::KvLayout& kv_layout() const = 0;
  virtual int64_t max_model_len_tokens() const = 0;
  /// Refuses new requests, lets live ones finish until `deadline` (of the clock), ends the rest and joins the loop:
  /// those with a token get FinishReason::kCancelled and OK, the others UNAVAILABLE. Not to be called by a sink.
  virtual void Drain(absl::Time deadline) = 0;
};

}  // namespace swiftcache::engine::exec
