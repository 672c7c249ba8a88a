// SPDX-License-Identifier: Apache-2.0
// A model whose tokens betray every wrong byte of KV: it writes fingerprints into the blocks and computes its logits
// only from what it reads back, for every position, through the block addresses it was given.
//
//   auto model = std::make_unique<FakeModel>(FakeModelOptions{.vocab_size = 50});
//   EXPECT_EQ(tokens, FakeGreedy(options, prompt, 20));
#pragma once

#include <glog/logging.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <set>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/backend/address_space.h"
#include "engine/backend/cpu/host_buffer.h"
#include "engine/backend/cpu/isa.h"
#include "engine/backend/cpu/sampler.h"
#include "engine/backend/cpu/thread_pool.h"
#include "engine/backend/kv_layout.h"
#include "engine/models/model.h"
#include "tests/fakes/late_queue.h"

namespace swiftcache {

/// A step as the hooks see it: its number from 0, its rows, and whether it goes on where the one before was cut short.
struct FakeStep {
  int64_t number = 0;
  int64_t num_rows = 0;
  bool goes_on = false;
};

struct FakeModelOptions {
  int64_t num_layers = 2;
  int64_t num_kv_heads = 1;
  int64_t head_dim = 4;  // one row of bf16 is 8 bytes
  int64_t vocab_size = 64;
  int64_t max_context_tokens = 4096;
  int64_t block_tokens = 16;
  engine::backend::KvDtype dtype = engine::backend::KvDtype::kBf16;
  /// Called before a step computes anything; its error is the step's. May block.
  std::function<absl::Status(const FakeStep&)> on_step = {};
  /// Called before a layer writes or reads anything.
  std::function<void(int64_t layer)> on_layer = {};
  /// Called when a layer's attention has read what it reads, before its products.
  std::function<void(int64_t layer)> on_products = {};
  /// Called on each row of logits, of so many in the step, before a token is chosen from it.
  std::function<void(int64_t row, int64_t rows, std::span<float>)> on_logits = {};
  /// Where its device does what it is given, and what its addresses mean; null: at once, on the caller's thread.
  LateQueue* queue = nullptr;
  engine::backend::AddressSpace space = {};
  /// A bug of such a device: words of leases are compared before their last read; the step's fence passes before the
  /// last layer's KV is written; or before tokens are chosen.
  enum class Bug { kNone, kChecksEarly, kWritesLate, kTokensLate } bug = Bug::kNone;

  engine::backend::KvLayout layout() const { return {num_layers, num_kv_heads, head_dim, block_tokens, dtype}; }
};

// The model's mathematics, free of blocks. A row's state starts as its token and position; a layer writes a key and a
// value made from the state, then folds the keys and values of all positions up to its own into the state.
inline uint64_t FakeMix(uint64_t a, uint64_t b) {
  uint64_t x = a * 0x9E3779B97F4A7C15u + (b ^ 0xD1B54A32D192ED03u);
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}
inline uint64_t FakeEmbed(int32_t token, int64_t position) { return FakeMix(FakeMix(1, token), position); }
inline uint64_t FakeKey(uint64_t state, int64_t layer) { return FakeMix(FakeMix(state, layer), 'k'); }
inline uint64_t FakeValue(uint64_t state, int64_t layer) { return FakeMix(FakeMix(state, layer), 'v'); }
inline uint64_t FakeAttend(uint64_t state, uint64_t key, uint64_t value) { return FakeMix(FakeMix(state, key), value); }
inline float FakeLogit(uint64_t state, int64_t id) {
  return static_cast<float>(FakeMix(state, id) >> 40) * (8.0f / (1 << 24)) - 4.0f;
}

/// The same mathematics over plain vectors: what any engine must generate for a prompt alone.
class FakeOracle {
 public:
  explicit FakeOracle(const FakeModelOptions& options) : options_(options), rows_(options.num_layers) {}

  /// Logits after this token.
  std::vector<float> Next(int32_t token) {
    uint64_t state = FakeEmbed(token, static_cast<int64_t>(rows_[0].size()));
    for (int64_t layer = 0; layer < options_.num_layers; ++layer) {
      rows_[layer].emplace_back(FakeKey(state, layer), FakeValue(state, layer));
      for (const auto& [key, value] : rows_[layer]) state = FakeAttend(state, key, value);
    }
    std::vector<float> logits(options_.vocab_size);
    for (int64_t id = 0; id < options_.vocab_size; ++id) logits[id] = FakeLogit(state, id);
    return logits;
  }

 private:
  const FakeModelOptions options_;
  std::vector<std::vector<std::pair<uint64_t, uint64_t>>> rows_;  // per layer and position: key, value
};

/// The greedy continuation of `prompt`, `max_tokens` long.
inline std::vector<int32_t> FakeGreedy(const FakeModelOptions& options, std::span<const int32_t> prompt,
                                       int64_t max_tokens) {
  FakeOracle oracle(options);
  std::vector<float> logits;
  for (int32_t token : prompt) logits = oracle.Next(token);
  std::vector<int32_t> output;
  while (static_cast<int64_t>(output.size()) < max_tokens) {
    output.push_back(static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin()));
    logits = oracle.Next(output.back());
  }
  return output;
}

/// Thread-safety: none. Ownership: owns its scratch. Errors: those of on_step; wrong use is checked, and so is that no
/// two rows of a step are written to the same place.
class FakeModel final : public engine::models::Model {
 public:
  explicit FakeModel(const FakeModelOptions& options)
      : options_(options),
        geometry_{options.num_layers, options.num_kv_heads, options.head_dim, options.vocab_size,
                  options.max_context_tokens} {
    CHECK_EQ(RowBytes() % 8, 0);
  }

  const engine::models::ModelGeometry& geometry() const override { return geometry_; }

  engine::backend::Fence Run(const engine::models::ForwardBatch& batch, engine::backend::LayerGate* gate,
                             engine::models::ForwardResult& result) override {
    using Bug = FakeModelOptions::Bug;
    result = {};
    queue().Submit([this, &batch, &result] { Begin(batch, result.status); });
    if (options_.bug == Bug::kChecksEarly) Check(batch, result);
    result.pieces = batch.first_piece;
    while (result.pieces < kPiecesOfLayer * options_.num_layers && !result.cut_short) {
      RunPiece(result.pieces++, gate, result);
    }
    if (options_.bug != Bug::kChecksEarly) Check(batch, result);
    if (result.cut_short) return queue().Submitted();
    result.tokens.assign(batch.samples.size(), engine::sample::SampledToken{});
    if (options_.bug != Bug::kTokensLate) queue().Submit([this, &result] { Choose(result); });
    const engine::backend::Fence done = queue().Submitted();
    if (options_.bug == Bug::kWritesLate) queue().Submit([this] { WriteLate(); });
    return done;
  }

 private:
  using Sequence = engine::backend::StepSequence;
  static constexpr int64_t kPiecesOfLayer = 2;  // attention, products

  engine::backend::KvLayout layout() const { return options_.layout(); }
  void RunPiece(int64_t piece, engine::backend::LayerGate* gate, engine::models::ForwardResult& result) {
    const int64_t layer = piece / kPiecesOfLayer;
    if (piece % kPiecesOfLayer == 0) {
      queue().Submit([this, &result, layer] { Write(layer, result.status); });
      if (gate != nullptr) queue().Submit([fence = gate->Arrived(layer)] { fence.Wait(); });
      queue().Submit([this, &result, layer] { Attend(layer, result.status); });
      if (gate != nullptr) result.cut_short = !gate->Read(layer, queue().Submitted());
    } else {
      if (options_.on_products) queue().Submit([this, layer] { options_.on_products(layer); });
      if (gate != nullptr) result.cut_short = !gate->Wanted();
    }
  }
  LateQueue& queue() { return options_.queue != nullptr ? *options_.queue : at_once_; }

  void Begin(const engine::models::ForwardBatch& batch, absl::Status& status) {
    batch_ = batch;
    Point();
    CheckBatch();
    if (batch_.first_piece == 0) Embed();
    CHECK_EQ(states_.size(), batch_.token_ids.size());
    const FakeStep step{steps_++, static_cast<int64_t>(states_.size()), batch_.first_piece > 0};
    if (options_.on_step) status = options_.on_step(step);
  }

  void Embed() {
    states_.clear();
    for (const Sequence& sequence : batch_.sequences) {
      for (int64_t i = 0; i < sequence.num_rows; ++i) {
        states_.push_back(FakeEmbed(batch_.token_ids[states_.size()], sequence.context_tokens + i));
      }
    }
  }

  template <typename Visit>
  void ForEachRow(Visit visit) const {
    size_t row = 0;
    int64_t first_block = 0;
    for (const Sequence& sequence : batch_.sequences) {
      for (int64_t i = 0; i < sequence.num_rows; ++i, ++row) visit(row, first_block, sequence.context_tokens + i);
      first_block += static_cast<int64_t>(sequence.blocks.size());
    }
  }
  void Write(int64_t layer, const absl::Status& status) {
    if (!status.ok()) return;
    if (options_.on_layer) options_.on_layer(layer);
    ForEachRow(
        [&](size_t row, int64_t first_block, int64_t position) { WriteState(layer, row, first_block, position); });
  }
  // A row reads the keys and values of rows beside it, which are those of the states before the layer.
  void Attend(int64_t layer, const absl::Status& status) {
    if (!status.ok()) return;
    ForEachRow([&](size_t row, int64_t first_block, int64_t position) {
      for (int64_t q = 0; q <= position; ++q) {
        const uint64_t key = ReadRow(KeyAddress(first_block, layer, q));
        states_[row] = FakeAttend(states_[row], key, ReadRow(ValueAddress(first_block, layer, q)));
      }
    });
  }
  void WriteState(int64_t layer, size_t row, int64_t first_block, int64_t position) {
    const bool late = options_.bug == FakeModelOptions::Bug::kWritesLate && layer == options_.num_layers - 1;
    const auto write = [&](std::byte* address, uint64_t word) {
      if (late) {
        unwritten_[address] = word;
      } else {
        WriteRow(address, word);
      }
    };
    write(KeyAddress(first_block, layer, position), FakeKey(states_[row], layer));
    write(ValueAddress(first_block, layer, position), FakeValue(states_[row], layer));
  }
  void Check(const engine::models::ForwardBatch& batch, engine::models::ForwardResult& result) {
    queue().Submit([&batch, &result] {
      for (size_t i = 0; i < batch.checks.size(); ++i) {
        if (!batch.checks[i].Holds()) result.changed.push_back(static_cast<int32_t>(i));
      }
    });
  }
  void Choose(engine::models::ForwardResult& result) {
    if (!result.status.ok() || batch_.samples.empty()) return;
    const auto rows = static_cast<int64_t>(batch_.logit_rows.size());
    const auto logits = *engine::backend::cpu::HostBuffer::Allocate(rows, options_.vocab_size);
    for (int64_t r = 0; r < rows; ++r) {
      const std::span<float> row(logits->row(r), options_.vocab_size);
      for (int64_t id = 0; id < options_.vocab_size; ++id) row[id] = FakeLogit(states_[batch_.logit_rows[r]], id);
      if (options_.on_logits) options_.on_logits(r, rows, row);
    }
    const absl::Status chosen = sampler_.Sample(*logits, batch_.samples, std::span(result.tokens));
    CHECK(chosen.ok()) << chosen;
  }
  void WriteLate() {
    for (const auto& [address, word] : unwritten_) WriteRow(const_cast<std::byte*>(address), word);
    unwritten_.clear();
  }

  void Point() {
    blocks_.clear();
    for (const Sequence& sequence : batch_.sequences) {
      for (const engine::backend::DeviceAddress block : sequence.blocks) blocks_.push_back({block, nullptr});
    }
    for (const engine::backend::StreamedBlock& streamed : batch_.streamed) blocks_[streamed.block].slots = &streamed;
  }
  std::byte* KeyAddress(int64_t first_block, int64_t layer, int64_t position) const {
    const Block& block = blocks_[first_block + position / options_.block_tokens];
    const engine::backend::DeviceAddress slice =
        block.slots != nullptr ? block.slots->slots[layer % 2] : block.layer_0 + layer * layout().slice_bytes();
    return options_.space.Host(slice + position % options_.block_tokens * RowBytes());
  }
  std::byte* ValueAddress(int64_t first_block, int64_t layer, int64_t position) const {
    return KeyAddress(first_block, layer, position) + layout().slice_bytes() / 2;
  }

  // Of its own order: what all heads keep of a token lies together.
  int64_t RowBytes() const { return layout().part_bytes() / options_.block_tokens; }
  // The word, then words made from it; whatever is not as written reads as another word.
  void WriteRow(std::byte* row, uint64_t word) const {
    for (int64_t i = 0; i < RowBytes() / 8; ++i) {
      const uint64_t part = i == 0 ? word : FakeMix(word, i);
      std::memcpy(row + i * 8, &part, 8);
    }
  }
  uint64_t ReadRow(const std::byte* row) const {
    if (const auto unwritten = unwritten_.find(row); unwritten != unwritten_.end()) return unwritten->second;
    uint64_t word = 0, part = 0, damage = 0;
    std::memcpy(&word, row, 8);
    for (int64_t i = 1; i < RowBytes() / 8; ++i) {
      std::memcpy(&part, row + i * 8, 8);
      damage |= part ^ FakeMix(word, i);
    }
    return damage == 0 ? word : FakeMix(word, damage);
  }

  void CheckBatch() const {
    CHECK(!batch_.token_ids.empty());
    CHECK(std::is_sorted(batch_.logit_rows.begin(), batch_.logit_rows.end()));
    for (int32_t id : batch_.token_ids) CHECK(id >= 0 && id < options_.vocab_size) << id;
    std::set<const std::byte*> written;
    for (const Sequence& sequence : batch_.sequences) {
      CHECK_GT(sequence.num_rows, 0);
      const int64_t end = sequence.context_tokens + sequence.num_rows;
      CHECK_LE(end, static_cast<int64_t>(sequence.blocks.size()) * options_.block_tokens);
    }
    ForEachRow([&](size_t, int64_t first_block, int64_t position) {
      CHECK(written.insert(KeyAddress(first_block, 0, position)).second) << "two rows of a step go to one place";
    });
  }

  const FakeModelOptions options_;
  const engine::models::ModelGeometry geometry_;
  struct Block {
    engine::backend::DeviceAddress layer_0;
    const engine::backend::StreamedBlock* slots;  // null: not streamed
  };
  LateQueue at_once_{{}};
  std::map<const std::byte*, uint64_t> unwritten_;  // only with Bug::kWritesLate
  engine::models::ForwardBatch batch_;
  std::vector<Block> blocks_;     // of all sequences, one after the other
  std::vector<uint64_t> states_;  // one a row
  engine::backend::cpu::ThreadPool pool_{1};
  engine::backend::cpu::Sampler sampler_{engine::backend::cpu::SamplingKernelsFor(engine::backend::cpu::BestIsa()),
                                         pool_};
  int64_t steps_ = 0;
};

}  // namespace swiftcache
