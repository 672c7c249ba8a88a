// SPDX-License-Identifier: Apache-2.0
// What a step must not depend on, and what CreateModel refuses.
#include "engine/models/decoder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <list>
#include <map>
#include <random>
#include <set>
#include <utility>

#include "engine/sample/sampling_state.h"
#include "tests/engine/backend/cpu/backend_test_util.h"
#include "tests/engine/models/sequence_runner.h"
#include "tests/engine/models/tiny_config.h"
#include "tests/fakes/cpu.h"
#include "tests/fakes/late_device.h"
#include "tests/fakes/synthetic_weights.h"

namespace swiftcache::engine::models {
namespace {

using backend::WeightFormat;
using backend::cpu::Activations;
using backend::cpu::SameBits;

// A prompt as one step of one thread, then in chunks, with other threads and blocks.
void CompareChunks(const loader::ModelConfig& config, const loader::Weights& weights, SequenceRunner::Options options,
                   int64_t tokens) {
  const std::vector<int32_t> ids = RandomIds(tokens, 1);
  options.block_tokens = 16;
  options.chunk = tokens;
  options.threads = 1;
  const std::vector<float> wanted = SequenceRunner(config, weights, options).Logits(ids, 0);
  ASSERT_EQ(static_cast<int64_t>(wanted.size()), tokens * 131);
  ASSERT_TRUE(std::all_of(wanted.begin(), wanted.end(), [](float logit) { return std::isfinite(logit); }));
  for (const int64_t chunk : {1, 7, 64, 512}) {
    options.chunk = chunk;
    options.threads = 2 + chunk % 2;
    options.block_tokens = chunk == 64 ? 5 : 32;
    EXPECT_TRUE(SameBits(SequenceRunner(config, weights, options).Logits(ids, 0), wanted)) << "chunk " << chunk;
  }
}

// Sequences of different lengths, each cut at random, mixed in random order: sequence s has 20 + `more` * s tokens.
void CompareNeighbours(const loader::ModelConfig& config, const loader::Weights& weights,
                       SequenceRunner::Options options, int num_sequences, int64_t more) {
  options.block_tokens = 4;
  options.chunk = 256;
  SequenceRunner runner(config, weights, options);
  std::vector<std::vector<int32_t>> ids;
  std::vector<std::vector<float>> alone;
  std::vector<SequenceBlocks> blocks;
  for (int s = 0; s < num_sequences; ++s) {
    ids.push_back(RandomIds(20 + more * s, 10 + s));
    alone.push_back(runner.Logits(ids.back(), 0));
    blocks.emplace_back(runner.kv(), ids.back().size());
  }
  std::minstd_rand random(5);
  std::vector<int64_t> done(num_sequences, 0);
  int64_t rows_compared = 0;
  while (true) {
    std::vector<int32_t> step_ids, logit_rows;
    std::vector<backend::StepSequence> sequences;
    std::vector<std::span<const float>> wanted;
    for (int s = 0; s < num_sequences; ++s) {
      const int64_t left = ids[s].size() - done[s];
      const int64_t rows = std::min<int64_t>(left, random() % 3 == 0 ? random() % 30 : random() % 2);
      if (rows == 0) continue;
      sequences.push_back({rows, done[s], blocks[s].addresses()});
      step_ids.insert(step_ids.end(), ids[s].begin() + done[s], ids[s].begin() + done[s] + rows);
      logit_rows.push_back(static_cast<int32_t>(step_ids.size()) - 1);
      done[s] += rows;
      wanted.push_back(std::span(alone[s]).subspan((done[s] - 1) * 131, 131));
    }
    if (step_ids.empty()) {
      int64_t left = 0;
      for (int s = 0; s < num_sequences; ++s) left += ids[s].size() - done[s];
      if (left == 0) break;
      continue;
    }
    const std::vector<float> found = runner.Step(step_ids, sequences, logit_rows);
    for (size_t i = 0; i < wanted.size(); ++i, ++rows_compared) {
      ASSERT_TRUE(SameBits(std::span(found).subspan(i * 131, 131), wanted[i]));
    }
  }
  EXPECT_GT(rows_compared, 4 * num_sequences);
}

SequenceRunner::Options OptionsOf(const Precision& precision) {
  return {.dtype = precision.dtype, .kv_dtype = precision.kv_dtype, .max_isa = precision.max_isa};
}

TEST(DecoderTest, ChunksBlocksAndThreadsChangeNoBitOfTheLogits) {
  const SyntheticWeights weights(TinyConfig());
  for (const Precision& precision : AllPrecisions()) {
    SCOPED_TRACE(precision.name);
    CompareChunks(TinyConfig(), weights, OptionsOf(precision), 600);
  }
}

TEST(DecoderTest, NeighboursInTheBatchChangeNoBitOfTheLogits) {
  const SyntheticWeights weights(TinyConfig());
  for (const Precision& precision : AllPrecisions()) {
    SCOPED_TRACE(precision.name);
    CompareNeighbours(TinyConfig(), weights, OptionsOf(precision), 8, 23);
  }
}

// A model whose matrices a file has quantised: V and the way down in a format of their own, as in files of Q4_K_M.
struct QuantizedModel {
  const char* name;
  WeightFormat most, v_and_down;
  int64_t head_dim = 32;  // rows of K and of V too; 16: they share a panel

  // Some panels would hold rows of two formats.
  bool straddles() const { return most != v_and_down && head_dim % 32 != 0; }
  loader::ModelConfig Config() const {
    loader::ModelConfig config = TinyConfig();
    config.num_layers = 2;
    config.hidden_size = config.intermediate_size = BlockOf(WeightFormat::kQ4_K).elements;
    config.num_heads = config.hidden_size / head_dim;
    config.num_kv_heads = 1;
    config.head_dim = head_dim;
    return config;
  }
};

constexpr QuantizedModel kQuantizedModels[] = {
    {"Q4_0", WeightFormat::kQ4_0, WeightFormat::kQ4_0},
    {"Q8_0", WeightFormat::kQ8_0, WeightFormat::kQ8_0},
    {"Q4_K", WeightFormat::kQ4_K, WeightFormat::kQ4_K},
    {"Q6_K", WeightFormat::kQ6_K, WeightFormat::kQ6_K},
    {"Q4_K and Q6_K", WeightFormat::kQ4_K, WeightFormat::kQ6_K},
    {"Q4_K and Q6_K in a panel", WeightFormat::kQ4_K, WeightFormat::kQ6_K, 16},
};

class QuantizedModelWeights final : public loader::Weights {
 public:
  explicit QuantizedModelWeights(const QuantizedModel& model) : vectors_(model.Config()) {
    tensors_ = vectors_.tensors();
    for (auto& [name, tensor] : tensors_) {
      if (tensor.rows == 1) continue;
      const bool other = name.ends_with("v_proj.weight") || name.ends_with("down_proj.weight");
      const auto seed = static_cast<uint32_t>(matrices_.size());
      tensor = matrices_.emplace_back(other ? model.v_and_down : model.most, tensor.rows, tensor.cols, seed).source();
    }
  }

 private:
  const SyntheticWeights vectors_;
  std::list<backend::cpu::QuantizedWeights> matrices_;
};

// Which products are of integers differs by instruction set and by what activations are rounded to.
struct QuantizedRun {
  backend::cpu::Isa isa;
  Activations activations;
  std::string rows, rows_of_q8;  // WeightReport's, of a model in one format

  std::string name() const { return std::string(backend::cpu::IsaName(isa)) + ", " + rows; }
  SequenceRunner::Options options() const {
    // KV of int8 beside products of int8 alone: one of each is enough.
    return {.kv_dtype = activations == Activations::kInt8 ? backend::KvDtype::kInt8 : backend::KvDtype::kBf16,
            .max_isa = isa,
            .activations = activations};
  }
};

std::vector<QuantizedRun> AllQuantizedRuns() {
  using backend::cpu::Isa;
  std::vector<QuantizedRun> runs;
  for (const Isa isa : backend::cpu::kAllIsas) {
    if (backend::cpu::BestIsa(isa) != isa) continue;
    runs.push_back({isa, Activations::kF32, "f32", "f32"});
    if (isa == Isa::kBaseline) continue;  // multiplies no integers, so that the others are the same
    const char* const with_bf16 = "int8 and bf16";
    const char* const twice = "int8 and int8 twice";
    const bool vnni = isa == Isa::kAvxVnni || isa == Isa::kAvx512Vnni;
    runs.push_back({isa, Activations::kAuto, MultipliesBf16(isa) ? with_bf16 : twice,
                    MultipliesBf16(isa) ? with_bf16
                    : vnni              ? twice
                                        : "int8 and f32"});
    runs.push_back({isa, Activations::kInt8, "int8", "int8"});
    if (MultipliesBf16(isa)) runs.push_back({isa, Activations::kBf16, "bf16", "bf16"});
  }
  return runs;
}

TEST(DecoderTest, NothingIsRoundedInTheProductsOfAQuantisedModelButTheRows) {
  for (const QuantizedModel& model : kQuantizedModels) {
    if (model.straddles()) continue;
    const QuantizedModelWeights weights(model);
    for (const QuantizedRun& run : AllQuantizedRuns()) {
      SequenceRunner runner(model.Config(), weights, run.options());
      const backend::WeightReport& report = runner.decoder().weights();
      EXPECT_EQ(report.packed, "stored") << model.name << ", " << run.name();
      EXPECT_EQ(report.rows, model.most == WeightFormat::kQ8_0 ? run.rows_of_q8 : run.rows)
          << model.name << ", " << run.name();
      EXPECT_EQ(report.rounded, 0) << model.name << ", " << run.name();
    }
  }
}

TEST(DecoderTest, ChunksBlocksAndThreadsChangeNoBitOverQuantisedWeights) {
  for (const QuantizedModel& model : kQuantizedModels) {
    const QuantizedModelWeights weights(model);
    for (const QuantizedRun& run : AllQuantizedRuns()) {
      SCOPED_TRACE(std::string(model.name) + ", " + run.name());
      CompareChunks(model.Config(), weights, run.options(), 210);
    }
  }
}

TEST(DecoderTest, NeighboursInTheBatchChangeNoBitOverQuantisedWeights) {
  for (const QuantizedModel& model : kQuantizedModels) {
    const QuantizedModelWeights weights(model);
    for (const QuantizedRun& run : AllQuantizedRuns()) {
      SCOPED_TRACE(std::string(model.name) + ", " + run.name());
      CompareNeighbours(model.Config(), weights, run.options(), 5, 16);
    }
  }
}

TEST(DecoderTest, AStepWithoutLogitsGivesNoneAndKeysAndValuesAllTheSame) {
  const loader::ModelConfig config = TinyConfig();
  SequenceRunner runner(config, SyntheticWeights(config), {});
  SequenceBlocks blocks(runner.kv(), 4);
  EXPECT_TRUE(runner.Step({1, 2, 3}, {{3, 0, blocks.addresses()}}, {}).empty());
  const std::vector<int32_t> ids = {1, 2, 3, 4};
  EXPECT_TRUE(SameBits(runner.Step({4}, {{1, 3, blocks.addresses()}}, {0}), runner.Logits(ids, 3)));
}

// Greedy continuations of two sequences, with and without the host in between.
TEST(DecoderTest, AStepMayNameTokensThatTheStepBeforeItChose) {
  const loader::ModelConfig config = TinyConfig();
  SequenceRunner runner(config, SyntheticWeights(config), {});
  const sample::SamplingState greedy({.temperature = 0}, 0, {});
  const std::vector<backend::SampleRow> samples = {backend::SampleRowOf(0, greedy, 3),
                                                   backend::SampleRowOf(1, greedy, 2)};
  std::vector<std::vector<int32_t>> outputs;
  for (const bool by_name : {false, true}) {
    SequenceBlocks a(runner.kv(), 16), b(runner.kv(), 16);
    std::vector<int32_t> ids = {1, 2, 3, 7, 8}, rows = {2, 4}, tokens;
    std::vector<backend::StepSequence> sequences = {{3, 0, a.addresses()}, {2, 0, b.addresses()}};
    for (int step = 0; step < 8; ++step) {
      ForwardResult result;
      runner.decoder()
          .Run({.token_ids = ids, .sequences = sequences, .logit_rows = rows, .samples = samples}, nullptr, result)
          .Wait();
      ASSERT_TRUE(result.status.ok()) << result.status;
      ids.clear();
      for (int32_t i = 0; i < 2; ++i) {
        ASSERT_TRUE(result.tokens[i].ok());
        tokens.push_back(result.tokens[i]->token_id);
        ids.push_back(by_name ? -1 - i : tokens.back());
        sequences[i].context_tokens += sequences[i].num_rows;
        sequences[i].num_rows = 1;
      }
      rows = {0, 1};
    }
    outputs.push_back(tokens);
  }
  EXPECT_EQ(outputs[0], outputs[1]);
  EXPECT_GT(std::set<int32_t>(outputs[0].begin(), outputs[0].end()).size(), 2u) << "tokens that tell steps apart";
}

// Part of a prompt, of which nothing is sampled: nobody but the step's status could tell.
TEST(DecoderTest, WhatFailsWhenTheDeviceGetsToItComesHomeWithItsStep) {
  const loader::ModelConfig config = TinyConfig();
  const SyntheticWeights weights(config);
  LateQueue queue({.pace = LateQueue::Pace::kLockStep});
  LateDevice device({.threads = 1}, &queue);
  const backend::KvLayout kv{config.num_layers, config.num_kv_heads, config.head_dim, 16, backend::KvDtype::kBf16};
  const auto model = CreateModel(config, weights, device, {.kv = kv, .max_batch_rows = 16});
  ASSERT_TRUE(model.ok()) << model.status();
  const auto memory = device.CreateKvMemory({.bytes = kv.block_bytes(), .block_bytes = kv.block_bytes()});
  ASSERT_TRUE(memory.ok()) << memory.status();
  const std::vector<backend::DeviceAddress> blocks = {(*memory)->base()};
  const std::vector<int32_t> ids = RandomIds(16, 1);
  const std::vector<backend::StepSequence> sequences = {{16, 0, blocks}};
  const auto run = [&] {
    ForwardResult result;
    const ForwardBatch batch{.token_ids = ids, .sequences = sequences};
    const backend::Fence done = (*model)->Run(batch, nullptr, result);
    EXPECT_TRUE(result.status.ok()) << "nothing was computed yet";
    done.Wait();
    return result.status;
  };
  const int64_t operations = 2 + 6 * config.num_layers;  // a step's beginning, ids, six a layer; the check of words
  for (int64_t failing = 0; failing <= operations; ++failing) {
    device.backend().FailAfter(failing, absl::DataLossError("the device fell off the bus"));
    EXPECT_TRUE(backend::IsDeviceLost(run())) << failing;
    EXPECT_TRUE(run().ok()) << "told once";
  }
  device.backend().FailAfter(operations + 1, absl::DataLossError("not in this step"));
  EXPECT_TRUE(run().ok());
}

TEST(CreateModelTest, TheLogitsOfAFullStepHaveRoomFromTheStart) {
  const loader::ModelConfig config = TinyConfig();
  const SyntheticWeights weights(config);
  ModelOptions options{.kv = {config.num_layers, config.num_kv_heads, config.head_dim, 16, backend::KvDtype::kBf16},
                       .max_batch_rows = 8};
  for (const auto& [wanted, room] : {std::pair<int64_t, int64_t>{1, 1}, {5, 5}, {64, 8}}) {
    options.max_logit_rows = wanted;
    const auto model = CreateModel(config, weights, Cpu(), options);
    ASSERT_TRUE(model.ok()) << model.status();
    EXPECT_EQ((*model)->logit_rows(), room);
  }
}

TEST(CreateModelTest, ActivationsAreWhatAStepWorksIn) {
  ModelOptions options;
  options.max_batch_rows = 8, options.max_logit_rows = 3;
  // hidden 72; 6 heads and twice 2 of 20, and 6 attended; twice 100; 3 rows of 131 logits
  EXPECT_EQ(ActivationBytes(TinyConfig(), options), 4 * (8 * (72 + 200 + 120 + 200) + 3 * 131));
  options.max_logit_rows = 64;
  EXPECT_EQ(ActivationBytes(TinyConfig(), options), 4 * (8 * (72 + 200 + 120 + 200) + 8 * 131));
}

TEST(CreateModelTest, TellsWhichMatricesOfTheFileItsPrecisionRounds) {
  const loader::ModelConfig config = TinyConfig();
  const SyntheticWeights weights(config);
  const int64_t matrices = 1 + 7 * config.num_layers + (config.tied_embeddings ? 0 : 1);
  for (const auto& [dtype, rounded] : {std::pair{ComputeDtype::kF32, int64_t{0}}, {ComputeDtype::kBf16, matrices}}) {
    const auto model = CreateModel(config, weights, Cpu(), {.kv = {3, 2, 20, 16}, .dtype = dtype});
    ASSERT_TRUE(model.ok()) << model.status();
    EXPECT_THAT((*model)->weights().stored, testing::ElementsAre(testing::Pair(backend::WeightFormat::kF32, matrices)));
    EXPECT_EQ((*model)->weights().rounded, rounded);
  }
}

TEST(CreateModelTest, RefusesAKvLayoutThatIsNotTheModels) {
  const loader::ModelConfig config = TinyConfig();
  const SyntheticWeights weights(config);
  const backend::KvLayout right{3, 2, 20, 16, backend::KvDtype::kBf16};
  ASSERT_TRUE(CreateModel(config, weights, Cpu(), {.kv = right}).ok());
  for (const backend::KvLayout& wrong : {backend::KvLayout{4, 2, 20, 16}, backend::KvLayout{3, 1, 20, 16},
                                         backend::KvLayout{3, 2, 24, 16}, backend::KvLayout{3, 2, 20, 0}}) {
    EXPECT_EQ(CreateModel(config, weights, Cpu(), {.kv = wrong}).status().code(), absl::StatusCode::kInvalidArgument);
  }
}

TEST(CreateModelTest, LoadingEndsBeforeTheNextLayerWhereTheModelIsNotWantedAnyMore) {
  const loader::ModelConfig config = TinyConfig();
  const SyntheticWeights weights(config);
  int asked = 0;
  const auto status =
      CreateModel(config, weights, Cpu(), {.kv = {3, 2, 20, 16}, .unwanted = [&] { return ++asked == 2; }}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(asked, 2);
}

TEST(CreateModelTest, AMissingTensorIsNamed) {
  loader::ModelConfig config = TinyConfig();
  const SyntheticWeights weights(config);
  config.num_layers = 4;
  const absl::Status status = CreateModel(config, weights, Cpu(), {.kv = {4, 2, 20, 16}}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("model.layers.3."));
}

TEST(CreateModelTest, ATensorOfTheWrongShapeIsNamedWithFoundAndWanted) {
  loader::ModelConfig config = TinyConfig();
  const SyntheticWeights weights(config);
  config.intermediate_size = 101;
  const absl::Status status = CreateModel(config, weights, Cpu(), {.kv = {3, 2, 20, 16}}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(
      std::string(status.message()),
      testing::AllOf(testing::HasSubstr("gate_proj"), testing::HasSubstr("100 x 72"), testing::HasSubstr("101 x 72")));
}

}  // namespace
}  // namespace swiftcache::engine::models
