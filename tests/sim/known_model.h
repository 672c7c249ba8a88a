// SPDX-License-Identifier: Apache-2.0
// A model whose KV is known: each cell has a value that follows from the tokens up to it, so that a reader sees a wrong
// one, and names then a token that no prompt leads to.
//
//   KnownModel model(options);
//   std::vector<int32_t> answer = {KnownModel::Next(KnownModel::ChainOf(prompt))};   // what it must say
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "engine/backend/kv_layout.h"
#include "engine/models/model.h"
#include "tests/sim/lease_channel.h"

namespace swiftcache::sim {

/// Time passes within each layer, before it writes and while it reads. Thread-safety: none. Ownership: borrows the
/// channels. Errors: a step that must not read is INTERNAL.
class KnownModel final : public engine::models::Model {
 public:
  struct Options {
    int64_t block_tokens = 1;
    LeaseChannels& channels;
    std::function<Micros()> layer_time;
    std::function<void(Micros)> pass;
    PlantedBug bug = PlantedBug::kNone;
    Tally& tally;
  };
  explicit KnownModel(const Options& options) : options_(options) {}

  static constexpr int64_t kLayers = 2, kVocab = 24;
  static constexpr int32_t kWrong = kVocab - 1;  // read, but nowhere written
  static engine::backend::KvLayout Layout(int64_t block_tokens) { return {kLayers, 1, 4, block_tokens}; }
  /// What stands for all tokens up to this one.
  static uint64_t Chain(uint64_t before, int32_t token);
  static constexpr uint64_t kRoot = 0x5eed;
  /// What follows them; never kWrong.
  static int32_t Next(uint64_t chain) { return static_cast<int32_t>((chain >> 20) % (kVocab - 1)); }

  const engine::models::ModelGeometry& geometry() const override { return geometry_; }
  engine::backend::Fence Run(const engine::models::ForwardBatch& batch, engine::backend::LayerGate* gate,
                             engine::models::ForwardResult& result) override;

 private:
  struct Reading {  // of a sequence
    int64_t first_row = 0;
    std::vector<uint64_t> chains;  // of its new rows
    bool wrong = false;
  };

  void Compute(const engine::models::ForwardBatch& batch, engine::backend::LayerGate* gate,
               engine::models::ForwardResult& result);
  void Write(const engine::models::ForwardBatch& batch, int64_t layer);
  void Read(const engine::models::ForwardBatch& batch, int64_t layer);
  static void Check(const engine::models::ForwardBatch& batch, engine::models::ForwardResult& result);
  int32_t TokenAfter(int64_t row) const;
  engine::backend::DeviceAddress Cell(const engine::backend::StepSequence& sequence, int64_t layer,
                                      int64_t position) const;

  const Options options_;
  const engine::models::ModelGeometry geometry_ = {kLayers, 1, 4, kVocab, 4096};
  std::vector<Reading> readings_;  // one a sequence of the step
};

}  // namespace swiftcache::sim
