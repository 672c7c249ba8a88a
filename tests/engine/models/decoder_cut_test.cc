// SPDX-License-Identifier: Apache-2.0
// Steps of a decoder that are cut short, and that go on.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "engine/models/decoder.h"
#include "tests/engine/models/sequence_runner.h"
#include "tests/engine/models/tiny_config.h"
#include "tests/fakes/synthetic_weights.h"

namespace swiftcache::engine::models {
namespace {

// So often asked, it wants no more.
class TiredGate final : public backend::LayerGate {
 public:
  explicit TiredGate(int64_t patience) : patience_(patience) {}
  backend::Fence Arrived(int64_t) override { return {}; }
  bool Read(int64_t, const backend::Fence&) override { return ++layers_read, true; }
  bool Wanted() override { return ++asked < patience_; }
  int64_t layers_read = 0, asked = 0;

 private:
  const int64_t patience_;
};

TEST(DecoderTest, AStepEndsBetweenTheProductsOfALayerWhereNobodyWantsIt) {
  const loader::ModelConfig config = TinyConfig();
  const SyntheticWeights weights(config);
  SequenceRunner runner(config, weights, {});
  SequenceBlocks blocks(runner.kv(), 16);
  const std::vector<int32_t> ids = RandomIds(16, 1), last = {15};
  const std::vector<backend::StepSequence> sequences = {{16, 0, blocks.addresses()}};
  const std::vector<backend::SampleRow> samples = {{.logits_row = 0}};
  const int64_t whole = 2 * config.num_layers;  // it is asked twice a layer
  for (int64_t patience = 1; patience <= whole + 1; ++patience) {
    TiredGate gate(patience);
    ForwardResult result;
    const ForwardBatch batch{.token_ids = ids, .sequences = sequences, .logit_rows = last, .samples = samples};
    runner.decoder().Run(batch, &gate, result).Wait();
    EXPECT_TRUE(result.status.ok()) << result.status;
    EXPECT_EQ(result.cut_short, patience <= whole) << patience;
    EXPECT_EQ(result.tokens.size(), patience <= whole ? 0u : 1u) << patience;
    EXPECT_EQ(gate.asked, std::min(patience, whole));
    EXPECT_EQ(gate.layers_read, (gate.asked + 1) / 2);
  }
}

// Wants so many pieces.
class PieceGate final : public backend::LayerGate {
 public:
  explicit PieceGate(int64_t pieces) : left_(pieces) {}
  backend::Fence Arrived(int64_t) override { return {}; }
  bool Read(int64_t, const backend::Fence&) override { return --left_ > 0; }
  bool Wanted() override { return --left_ > 0; }

 private:
  int64_t left_;
};

TEST(DecoderTest, AStepGoesOnWhereverItWasCutAndWhereverItsBlocksLieThen) {
  const loader::ModelConfig config = TinyConfig();
  const SyntheticWeights weights(config);
  SequenceRunner runner(config, weights, {});
  const backend::KvLayout kv = runner.kv();
  const std::vector<int32_t> ids = RandomIds(16, 1), last = {15};
  const std::vector<backend::SampleRow> samples = {{.logits_row = 0}};
  ForwardResult result;
  const auto run = [&](const SequenceBlocks& blocks, int64_t first_piece, int64_t pieces) {
    PieceGate gate(pieces);
    const std::vector<backend::StepSequence> sequences = {{16, 0, blocks.addresses()}};
    runner.decoder()
        .Run({.token_ids = ids,
              .sequences = sequences,
              .logit_rows = last,
              .samples = samples,
              .first_piece = first_piece},
             &gate, result)
        .Wait();
    EXPECT_TRUE(result.status.ok()) << result.status;
  };
  const auto logits = [&] {
    const auto row = runner.decoder().Logits(1);
    return std::vector<float>(row->begin(), row->end());
  };
  const SequenceBlocks at_once(kv, 16);
  const int64_t all = 3 * config.num_layers;
  run(at_once, 0, all + 1);
  const std::vector<float> expected = logits();
  for (int64_t pieces = 1; pieces < all; ++pieces) {
    const SequenceBlocks before(kv, 16), behind(kv, 16);
    run(before, 0, pieces);
    ASSERT_TRUE(result.cut_short);
    EXPECT_EQ(result.pieces, pieces);
    std::byte* const from = backend::AddressSpace().Host(before.addresses()[0]);
    std::memcpy(backend::AddressSpace().Host(behind.addresses()[0]), from, kv.block_bytes());
    std::memset(from, 0xff, kv.block_bytes());
    run(behind, pieces, all + 1);
    EXPECT_FALSE(result.cut_short);
    EXPECT_EQ(logits(), expected) << pieces;
  }
}

}  // namespace
}  // namespace swiftcache::engine::models
