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
#include <set>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/backend/kv_layout.h"
#include "engine/models/model.h"

namespace swiftcache {

/// A step as the hooks see it: its number from 0, and its rows.
struct FakeStep {
  int64_t number = 0;
  int64_t num_rows = 0;
};

struct FakeModelOptions {
  int64_t num_layers = 2;
  int64_t num_kv_heads = 1;
  int64_t head_dim = 4;  // one row of bf16 is 8 bytes
  int64_t vocab_size = 64;
  int64_t max_context_tokens = 4096;
  int64_t block_tokens = 16;
  engine::backend::KvDtype dtype = engine::backend::KvDtype::kBf16;
  /// Called in Begin; its error is the step's. May block.
  std::function<absl::Status(const FakeStep&)> on_step = {};
  /// Called before a layer writes or reads anything.
  std::function<void(int64_t layer)> on_layer = {};
  /// Called on the logits of a step before they are handed out.
  std::function<void(std::span<float>)> on_logits = {};

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
    CHECK_EQ(layout().row_bytes() % 8, 0);
  }

  const engine::models::ModelGeometry& geometry() const override { return geometry_; }

  absl::Status Begin(const engine::models::ForwardBatch& batch) override {
    batch_ = batch;
    states_.clear();
    next_layer_ = 0;
    CheckBatch();
    for (const auto& sequence : batch_.sequences) {
      for (int64_t i = 0; i < sequence.num_rows; ++i) {
        states_.push_back(FakeEmbed(batch_.token_ids[states_.size()], sequence.context_tokens + i));
      }
    }
    CHECK_EQ(states_.size(), batch_.token_ids.size());
    const FakeStep step{steps_++, static_cast<int64_t>(states_.size())};
    return options_.on_step ? options_.on_step(step) : absl::OkStatus();
  }

  absl::Status RunLayer(int64_t layer) override {
    CHECK_EQ(layer, next_layer_++);
    if (options_.on_layer) options_.on_layer(layer);
    size_t row = 0;
    for (const auto& sequence : batch_.sequences) {
      for (int64_t i = 0; i < sequence.num_rows; ++i, ++row) {
        const int64_t position = sequence.context_tokens + i;
        WriteRow(KeyAddress(sequence, layer, position), FakeKey(states_[row], layer));
        WriteRow(ValueAddress(sequence, layer, position), FakeValue(states_[row], layer));
        for (int64_t q = 0; q <= position; ++q) {
          const uint64_t key = ReadRow(KeyAddress(sequence, layer, q));
          states_[row] = FakeAttend(states_[row], key, ReadRow(ValueAddress(sequence, layer, q)));
        }
      }
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::span<const float>> Finish() override {
    CHECK_EQ(next_layer_, options_.num_layers);
    logits_.clear();
    for (int32_t row : batch_.logit_rows) {
      for (int64_t id = 0; id < options_.vocab_size; ++id) logits_.push_back(FakeLogit(states_[row], id));
    }
    if (options_.on_logits) options_.on_logits(std::span(logits_));
    return std::span<const float>(logits_);
  }

 private:
  using Rows = engine::models::SequenceRows;
  engine::backend::KvLayout layout() const { return options_.layout(); }

  std::byte* KeyAddress(const Rows& sequence, int64_t layer, int64_t position) const {
    const int64_t bt = options_.block_tokens;
    return sequence.blocks[position / bt] + layer * layout().slice_bytes() + position % bt * layout().row_bytes();
  }
  std::byte* ValueAddress(const Rows& sequence, int64_t layer, int64_t position) const {
    return KeyAddress(sequence, layer, position) + layout().slice_bytes() / 2;
  }

  // The word, then words made from it; whatever is not as written reads as another word.
  void WriteRow(std::byte* row, uint64_t word) const {
    for (int64_t i = 0; i < layout().row_bytes() / 8; ++i) {
      const uint64_t part = i == 0 ? word : FakeMix(word, i);
      std::memcpy(row + i * 8, &part, 8);
    }
  }
  uint64_t ReadRow(const std::byte* row) const {
    uint64_t word = 0, part = 0, damage = 0;
    std::memcpy(&word, row, 8);
    for (int64_t i = 1; i < layout().row_bytes() / 8; ++i) {
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
    for (const Rows& sequence : batch_.sequences) {
      CHECK_GT(sequence.num_rows, 0);
      const int64_t end = sequence.context_tokens + sequence.num_rows;
      CHECK_LE(end, static_cast<int64_t>(sequence.blocks.size()) * options_.block_tokens);
      for (int64_t p = sequence.context_tokens; p < end; ++p) {
        CHECK(written.insert(KeyAddress(sequence, 0, p)).second) << "two rows of a step go to one place";
      }
    }
  }

  const FakeModelOptions options_;
  const engine::models::ModelGeometry geometry_;
  engine::models::ForwardBatch batch_;
  std::vector<uint64_t> states_;  // one a row
  std::vector<float> logits_;
  int64_t next_layer_ = 0;
  int64_t steps_ = 0;
};

}  // namespace swiftcache
