// SPDX-License-Identifier: Apache-2.0
// Runs a planned step through the model: rows in, tokens out. Blocks in leases are read where they are mapped, or
// streamed layer by layer.
//
//   forward.Gather(plan);                       // forward.leases_read() is known
//   ASSIGN_OR_RETURN(Forward::Outcome outcome, forward.Run());
//   ...outcome.lost: sequences that read these leases are to be computed again; outcome.cut_short: no tokens
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "engine/backend/device_address.h"
#include "engine/backend/sampling.h"
#include "engine/backend/step.h"
#include "engine/exec/borrowing.h"
#include "engine/exec/layer_streamer.h"
#include "engine/exec/live_request.h"
#include "engine/exec/own_memory.h"
#include "engine/exec/urgency.h"
#include "engine/kv/sequence_blocks.h"
#include "engine/models/model.h"
#include "engine/sched/scheduler.h"

namespace swiftcache::engine::exec {

/// What is read of a lease is good if its generation word is unchanged after the last read (WordCheck::Holds has the
/// argument). What is read in place the device checks itself, after its last read; the words are looked at between
/// layers too, but only so that a step of none but lost sequences ends early. What is streamed is checked by the
/// transport around each copy, and stays good. Garbage is read meanwhile and does no harm: it is numbers in the rows of
/// its own sequence, whose results are thrown away.
///
/// A step ends early only while its layers are given to the device. A device that computes late and waits for streamed
/// layers by itself (FenceState::stands_for) may have been given all before it has read the first: then the step runs to
/// its end, and what it lost is known only there. Thread-safety: none, but progress() may be read by any thread.
/// Ownership: borrows what is handed in, owns the batch's scratch. Errors: the model's.
class Forward final : private backend::LayerGate {
 public:
  struct Outcome {
    std::vector<backend::Sampled> tokens;  // [chunks that sample], in their order
    std::vector<kv::LeaseId> lost;         // memory that changed hands while this step read it
    // No tokens: a lease that it reads, or that is worth cutting it (Borrowing::WorthCutting), is due (Urgency) before
    // this step could have ended; or every sequence read lost ones.
    bool cut_short = false;
    bool cut_for_what_it_reads = false;  // likewise, for one of these at least
    bool is_kept = false;                // likewise; if the next step is the same, it goes on behind what is computed
    bool goes_on = false;                // behind what the step before had computed
  };
  /// Of an engine that shares.
  struct Leases {
    const Borrowing* borrowing;
    const Urgency* urgency;
    LayerStreamer* streamer;  // null: all reading is in place
    const Clock* clock;
  };
  /// `leases`: none in an engine that shares nothing.
  Forward(models::Model* model, OwnMemory* own, const kv::SequenceBlocks* cache, const std::optional<Leases>& leases)
      : model_(model), own_(own), cache_(cache), leases_(leases) {}

  /// Rows and addresses of a step, of which nothing is read yet; while one is kept, of that one.
  void Gather(const sched::StepPlan& plan);
  std::span<const kv::LeaseId> leases_read() const { return lease_ids_; }
  /// Computes what was gathered, once. `may_cut_short`: give up behind the next attention or product where a lease is
  /// due sooner than the step would end, at the pace at which layers are given to the device. REQUIRES: leases. While a
  /// step is kept: this is that one, in the blocks that it had, wherever these and what it reads lie by now.
  absl::StatusOr<Outcome> Run(bool may_cut_short = false);
  /// Whether Run will go on behind what the step before has computed. Not on a device that computes late.
  bool goes_on() const { return kept_pieces_ > 0; }
  /// Whether the step that was gathered would be kept if it were cut short. False before any step has read a layer.
  bool would_be_kept() const { return computes_at_once_; }
  /// The next step is another than the one that is kept.
  void DropKept() { kept_pieces_ = 0; }
  /// Counts up with every Run and every layer of it: a long step is not a loop that stands still.
  int64_t progress() const { return progress_.load(std::memory_order_relaxed); }
  /// KV of leases that the step read where it lies.
  int64_t in_place_bytes() const { return in_place_bytes_; }

 private:
  struct LeaseRead {
    kv::LeaseId lease;
    transport::LeaseView view;
    int64_t in_place_blocks = 0;
  };
  struct Reading {
    size_t sequence = 0;  // index in sequences_
    size_t lease = 0;     // index in reads_
  };

  void GatherSample(const Continuation& continuation);
  std::span<const backend::DeviceAddress> GatherBlocks(Continuation& continuation);
  backend::DeviceAddress AddressOf(kv::Place place) const;
  void Stream(const kv::BlockTable& table, BlockAddresses& addresses);
  LeaseRead& NoteReader(kv::RegionId region);
  void GatherChecks();
  Outcome Conclude(models::ForwardResult result);

  // The gate.
  backend::Fence Arrived(int64_t layer) override;
  bool Read(int64_t layer, const backend::Fence& read) override;
  bool Wanted() override { return !(computes_at_once_ && IsTooLate()); }
  void NotePace(int64_t layer);
  int64_t num_layers() const { return model_->geometry().num_layers; }
  bool IsTooLate() const;
  absl::Time Due() const;
  bool AllLost() const;

  models::Model* const model_;
  OwnMemory* const own_;
  const kv::SequenceBlocks* const cache_;
  const std::optional<Leases> leases_;
  std::vector<int32_t> token_ids_;  // [rows]
  int64_t num_blocks_ = 0;          // of the sequences gathered
  std::vector<backend::StepSequence> sequences_;
  std::vector<backend::StreamedBlock> streamed_;
  std::vector<int32_t> logit_rows_;
  std::vector<backend::SampleRow> samples_;
  absl::flat_hash_map<kv::RegionId, size_t> read_of_;  // index in reads_
  std::vector<LeaseRead> reads_;                       // leases that this step reads
  std::vector<kv::LeaseId> lease_ids_;                 // the same
  std::vector<Reading> readings_;                      // likewise, in the order of the sequences
  std::vector<backend::WordCheck> checks_;             // of the leases that are read in place, and
  std::vector<size_t> checked_;                        // which these are, in reads_
  int64_t in_place_bytes_ = 0;
  int64_t kept_pieces_ = 0;  // of the step before, if it was cut short: so much of it is computed; 0: it is not kept
  bool may_cut_short_ = false;
  absl::Time begin_, first_read_;
  int64_t first_layer_ = -1;       // that this run has read; -1: none
  absl::Duration of_a_layer_;      // the pace until the layer that was read last
  int64_t layers_left_ = 0;        // behind that; a step that is kept goes on with the first of them
  bool computes_at_once_ = false;  // the device: another is given a layer's products in no time
  std::atomic<int64_t> progress_{0};
};

}  // namespace swiftcache::engine::exec
