// SPDX-License-Identifier: Apache-2.0
// Runs a planned step through the model: rows in, logits out. Blocks in leases are read where they are mapped, or
// streamed layer by layer.
//
//   ASSIGN_OR_RETURN(Forward::Outcome outcome, forward.Run(plan));
//   ...outcome.lost: sequences that read these leases are to be computed again; outcome.cut_short: nothing is computed
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "engine/exec/layer_streamer.h"
#include "engine/exec/sharing.h"
#include "engine/exec/urgency.h"
#include "engine/kv/arena.h"
#include "engine/kv/kv_cache.h"
#include "engine/models/model.h"
#include "engine/sched/scheduler.h"

namespace swiftcache::engine::exec {

/// What is read of a lease is good if its generation word is unchanged after the last read (LeaseView::Holds has the
/// argument): in place that is after the last layer, asked after every layer so that a step of none but lost sequences
/// ends early; what is streamed is checked around each copy, and stays good. Garbage is read meanwhile and does no
/// harm: it is numbers in the rows of its own sequence, whose results are thrown away. Thread-safety: none, but
/// progress() may be read by any thread. Ownership: borrows what is handed in, owns the batch's scratch. Errors: the
/// model's.
class Forward {
 public:
  struct Outcome {
    std::span<const float> logits;  // [chunks that sample][vocab_size], in their order; valid until the next Run
    std::vector<kv::LeaseId> lost;  // memory that changed hands while this step read it
    // No logits: a lease is due (Urgency) before this step could have ended, or every sequence read lost ones.
    bool cut_short = false;
  };
  /// Of an engine that shares.
  struct Leases {
    const Sharing* sharing;
    const Urgency* urgency;
    LayerStreamer* streamer;  // null: all reading is in place
    const Clock* clock;
  };

  /// `leases`: none in an engine that shares nothing.
  Forward(models::Model* model, const kv::Arena* arena, const kv::KvCache* cache, const std::optional<Leases>& leases)
      : model_(model), arena_(arena), cache_(cache), leases_(leases) {}

  /// `may_cut_short`: give up at the next layer where a lease is due sooner than the step would end. REQUIRES: leases.
  absl::StatusOr<Outcome> Run(const sched::StepPlan& plan, bool may_cut_short = false);
  /// Counts up with every Run and every layer of it: a long step is not a loop that stands still.
  int64_t progress() const { return progress_.load(std::memory_order_relaxed); }
  /// KV of leases that the step read where it lies.
  int64_t in_place_bytes() const;

 private:
  struct InPlace {  // a lease that is read where it lies
    kv::LeaseId lease;
    transport::LeaseView view;
    int64_t num_blocks = 0;
  };
  struct Reading {
    size_t sequence = 0;  // index in sequences_
    kv::LeaseId lease;
    friend bool operator==(const Reading&, const Reading&) = default;
  };
  struct Streamed {
    size_t block = 0;  // index in blocks_
    int64_t stream = 0;
  };

  void Gather(const sched::StepPlan& plan);
  std::byte* AddressOf(kv::BlockId id);
  std::byte* LeasedAddress(kv::BlockId id, kv::Place place);
  void PointAt(int64_t layer);
  void NoteLost(std::span<const kv::LeaseId> leases, Outcome& outcome) const;
  void CheckInPlace(Outcome& outcome) const;
  bool TooLate(absl::Time begin, int64_t layers_done) const;
  bool AllLost(const Outcome& outcome) const;
  absl::StatusOr<Outcome> RunModel(bool may_cut_short);
  absl::Status RunLayers(bool may_cut_short, Outcome& outcome);

  models::Model* const model_;
  const kv::Arena* const arena_;
  const kv::KvCache* const cache_;
  const std::optional<Leases> leases_;
  std::vector<int32_t> token_ids_;  // [rows]
  std::vector<std::byte*> blocks_;  // of all sequences, one after the other
  std::vector<models::SequenceRows> sequences_;
  std::vector<int32_t> logit_rows_;
  std::vector<kv::LeaseId> lease_ids_;  // read by this step
  std::vector<Reading> readings_;       // likewise, in the order of the sequences
  std::vector<InPlace> in_place_;
  std::vector<Streamed> streamed_;
  std::atomic<int64_t> progress_{0};
};

}  // namespace swiftcache::engine::exec
