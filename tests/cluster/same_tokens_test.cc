// SPDX-License-Identifier: Apache-2.0
// Real weights through the whole engine: tokens and log-probabilities of 32 prompts are equal, bit for bit, alone,
// batched in random order, with prompts cut into chunks of 1, 7, 64 and 512 tokens, with the prefix cache on and off,
// and in an arena so small that preemption and eviction happen.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "engine/backend/cpu/cpu_device.h"
#include "engine/exec/engine.h"
#include "engine/loader/checkpoint.h"
#include "engine/models/create_model.h"
#include "tests/engine/exec/recording_sink.h"
#include "tests/fakes/cached_file.h"
#include "tests/fakes/late_device.h"

namespace swiftcache::engine::exec {
namespace {

constexpr int kPrompts = 32;

// Lends a model that took long to pack to one engine after the other.
class LentModel final : public models::Model {
 public:
  explicit LentModel(models::Model* model) : model_(model) {}
  const models::ModelGeometry& geometry() const override { return model_->geometry(); }
  backend::Fence Run(const models::ForwardBatch& batch, backend::LayerGate* gate,
                     models::ForwardResult& result) override {
    return model_->Run(batch, gate, result);
  }

 private:
  models::Model* const model_;
};

// A model file, the precision to run it at, and how long the prompts are.
struct Subject {
  std::string path;
  models::ComputeDtype dtype = models::ComputeDtype::kAuto;
  backend::KvDtype kv_dtype = backend::KvDtype::kBf16;
  backend::cpu::Isa max_isa = backend::cpu::kHighestIsa;
  int64_t block_tokens = 16;
  int64_t longest_prefix = 64, longest_own = 50, output_tokens = 24;
  std::vector<int64_t> chunks = {1, 7, 64, 512};
  bool late = false;  // on a device that computes late; what is compared with is not
};

std::vector<int32_t> RandomIds(std::mt19937& rng, int64_t count, int64_t vocab_size) {
  std::vector<int32_t> ids(count);
  for (int32_t& id : ids) id = static_cast<int32_t>(rng() % vocab_size);
  return ids;
}

std::vector<Request> Prompts(const Subject& subject, int64_t vocab_size) {
  std::mt19937 rng(5);
  std::vector<std::vector<int32_t>> prefixes(1);
  for (int i = 1; i <= 3; ++i) prefixes.push_back(RandomIds(rng, subject.longest_prefix * i / 3, vocab_size));
  std::vector<Request> requests(kPrompts);
  for (int i = 0; i < kPrompts; ++i) {
    Request& request = requests[i];
    request.request_id = std::to_string(i);
    request.prompt = prefixes[rng() % prefixes.size()];
    for (int32_t id : RandomIds(rng, 1 + rng() % subject.longest_own, vocab_size)) request.prompt.push_back(id);
    request.sampling.temperature = 0;
    request.sampling.logprobs = 2;
    request.max_tokens = subject.output_tokens;
    request.ignore_eos = true;
    request.cache_salt = std::string(i % 2, 's');
  }
  return requests;
}

struct Outcome {
  std::vector<Recording::Output> outputs;  // by prompt
  EngineLoad load;
  int64_t cached_tokens = 0;
};

class Runner {
 public:
  explicit Runner(const Subject& subject)
      : subject_(subject), device_(MakeDevice({.threads = 2, .max_isa = subject.max_isa})) {
    auto checkpoint = loader::OpenCheckpoint(subject.path);
    EXPECT_TRUE(checkpoint.ok()) << checkpoint.status();
    const loader::ModelConfig& config = checkpoint->config;
    layout_ = {config.num_layers, config.num_kv_heads, config.head_dim, subject.block_tokens, subject.kv_dtype};
    auto model = models::CreateModel(config, *checkpoint->weights, *device_, {.kv = layout_, .dtype = subject.dtype});
    EXPECT_TRUE(model.ok()) << model.status();
    model_ = *std::move(model);
  }

  // Everything is submitted before the loop starts, so that a run is the same every time.
  Outcome Run(EngineOptions options, int64_t num_blocks, unsigned order_seed) {
    options.block_tokens = subject_.block_tokens;
    options.kv_cache_dtype = subject_.kv_dtype;
    options.kv_cache_bytes = num_blocks * layout_.block_bytes();
    RealClock clock;
    Metrics metrics;
    auto engine = Engine::Create(options, *device_, std::make_unique<LentModel>(model_.get()), clock, metrics);
    EXPECT_TRUE(engine.ok()) << engine.status();
    const std::vector<Request> requests = Prompts(subject_, model_->geometry().vocab_size);
    std::vector<size_t> order(requests.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::mt19937 rng(order_seed);
    std::shuffle(order.begin(), order.end(), rng);
    std::vector<std::shared_ptr<Recording>> recordings(requests.size());
    for (size_t i : order) {
      recordings[i] = std::make_shared<Recording>();
      EXPECT_TRUE((*engine)->Submit(requests[i], std::make_unique<RecordingSink>(recordings[i])).ok());
    }
    (*engine)->Start();
    (*engine)->ShutDown(absl::InfiniteFuture());
    return Collect(recordings, (*engine)->Load());
  }

 private:
  std::unique_ptr<backend::Device> MakeDevice(const backend::cpu::CpuDeviceOptions& options) {
    if (subject_.late) return std::make_unique<LateDevice>(options, &queue_);
    return std::make_unique<backend::cpu::CpuDevice>(options);
  }
  static Outcome Collect(const std::vector<std::shared_ptr<Recording>>& recordings, const EngineLoad& load) {
    Outcome outcome{.outputs = {}, .load = load};
    for (const auto& recording : recordings) {
      EXPECT_TRUE(recording->Wait().ok());
      outcome.outputs.push_back(recording->output());
      outcome.cached_tokens += outcome.outputs.back().usage->cached_local_tokens;
    }
    EXPECT_EQ(load.kv_blocks_used, 0);
    EXPECT_EQ(load.kv_blocks_free + load.kv_blocks_cached, load.kv_blocks_total);
    return outcome;
  }

  const Subject subject_;
  LateQueue queue_{{.pace = LateQueue::Pace::kThread}};
  const std::unique_ptr<backend::Device> device_;
  backend::KvLayout layout_;
  std::unique_ptr<models::Model> model_;
};

// Returns the number of tokens compared.
int64_t ExpectSame(const Outcome& got, const Outcome& wanted, const std::string& how) {
  SCOPED_TRACE(how);
  int64_t compared = 0;
  for (int i = 0; i < kPrompts; ++i) {
    EXPECT_EQ(got.outputs[i].tokens, wanted.outputs[i].tokens) << "prompt " << i;
    const auto &a = got.outputs[i].logprobs, &b = wanted.outputs[i].logprobs;
    EXPECT_EQ(a.size(), b.size());
    for (size_t t = 0; t < std::min(a.size(), b.size()); ++t, ++compared) {
      EXPECT_TRUE(a[t].logprob == b[t].logprob && a[t].top == b[t].top)
          << "prompt " << i << " token " << t << ": " << a[t].logprob << " and " << b[t].logprob;
    }
  }
  return compared;
}

// The matrix. The small arena holds the longest sequence and little more.
void CheckSubject(const Subject& subject) {
  const auto begin = std::chrono::steady_clock::now();
  if (backend::cpu::BestIsa(subject.max_isa) != subject.max_isa) {
    GTEST_SKIP() << "this machine has no " << backend::cpu::IsaName(subject.max_isa);
  }
  Runner runner(subject);
  ASSERT_FALSE(testing::Test::HasFailure());
  const int64_t longest = subject.longest_prefix + subject.longest_own + subject.output_tokens;
  const int64_t large = kPrompts * (longest / subject.block_tokens + 1), small = longest * 2 / subject.block_tokens;
  Subject at_once = subject;
  at_once.late = false;
  const Outcome alone = Runner(at_once).Run({.max_num_seqs = 1, .enable_prefix_caching = false}, large, 0);
  EXPECT_EQ(alone.cached_tokens, 0);
  int64_t compared = 0;
  for (bool caching : {false, true}) {
    for (int64_t chunk : subject.chunks) {
      const EngineOptions options{.max_num_batched_tokens = chunk, .enable_prefix_caching = caching};
      const std::string how = "chunk " + std::to_string(chunk) + (caching ? " cache" : "");
      const Outcome outcome = runner.Run(options, large, chunk);
      compared += ExpectSame(outcome, alone, how);
      EXPECT_EQ(outcome.load.preemptions_total, 0) << how;
      EXPECT_EQ(outcome.cached_tokens > 0, caching) << how;
    }
    const Outcome squeezed = runner.Run({.max_num_batched_tokens = 64, .enable_prefix_caching = caching}, small, 99);
    compared += ExpectSame(squeezed, alone, caching ? "small arena, cache" : "small arena");
    EXPECT_GT(squeezed.load.preemptions_total, 0) << "the arena was meant to be too small";
    EXPECT_EQ(squeezed.load.evicted_blocks_total > 0, caching);
  }
  EXPECT_EQ(compared, kPrompts * subject.output_tokens * 2 * (static_cast<int64_t>(subject.chunks.size()) + 1));
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  std::printf("%s: %ld tokens and their log-probabilities compared in %.1f s\n",
              std::filesystem::path(subject.path).filename().c_str(), compared, seconds.count());
}

const char kTiny[] = SWIFTCACHE_SOURCE_DIR "/tests/data/";

class TinyModelTest : public testing::TestWithParam<const char*> {
 protected:
  Subject subject() const { return {.path = std::string(kTiny) + GetParam()}; }
};

TEST_P(TinyModelTest, SameTokensAtTheMachinesBest) {
  Subject best = subject();
  best.max_isa = backend::cpu::BestIsa(best.max_isa);
  CheckSubject(best);
}

TEST_P(TinyModelTest, SameTokensOnAvx2) {
  Subject avx2 = subject();
  avx2.max_isa = backend::cpu::Isa::kAvx2;
  CheckSubject(avx2);
}

TEST_P(TinyModelTest, SameTokensInF32) {
  Subject f32 = subject();
  f32.max_isa = backend::cpu::BestIsa(f32.max_isa);
  f32.dtype = models::ComputeDtype::kF32;
  f32.kv_dtype = backend::KvDtype::kF32;
  CheckSubject(f32);
}

TEST_P(TinyModelTest, SameTokensWithKvInInt8) {
  for (const auto limit : {backend::cpu::Isa::kAvx2, backend::cpu::kHighestIsa}) {
    Subject int8 = subject();
    int8.max_isa = backend::cpu::BestIsa(limit);
    int8.kv_dtype = backend::KvDtype::kInt8;
    CheckSubject(int8);
  }
}

TEST_P(TinyModelTest, SameTokensOnADeviceThatComputesLate) {
  Subject late = subject();
  late.max_isa = backend::cpu::BestIsa(late.max_isa);
  late.late = true;
  CheckSubject(late);
}

INSTANTIATE_TEST_SUITE_P(All, TinyModelTest,
                         testing::Values("tiny/tiny-llama-a", "tiny/tiny-llama-b", "tiny/tiny-qwen2", "tiny/tiny-qwen3",
                                         "tiny-gguf/tiny-llama-a.q4_1.gguf"));

// Prompts of up to 1,000 tokens: 512 cuts them too, and attention passes over many tiles.
TEST(LongPromptsTest, SameTokensWhenEveryChunkIsShorterThanThePrompt) {
  for (const auto isa : {backend::cpu::Isa::kAvx2, backend::cpu::BestIsa()}) {
    CheckSubject({.path = std::string(kTiny) + "tiny/tiny-llama-a",
                  .max_isa = isa,
                  .block_tokens = 4,
                  .longest_prefix = 600,
                  .longest_own = 400,
                  .output_tokens = 60});
  }
}

TEST(SmolLm2Test, SameTokensWithTheModelThatUsersFetch) {
  if (!std::filesystem::exists(SmolLm2Path())) {
    GTEST_SKIP() << "no model at " << SmolLm2Path()
                 << "; deploy/fetch-model.sh fetches it, SWIFTCACHE_TEST_MODEL names it";
  }
  Subject smol{.path = SmolLm2Path(), .block_tokens = 4, .longest_prefix = 32, .longest_own = 32, .output_tokens = 8};
  smol.max_isa = backend::cpu::BestIsa(smol.max_isa);
  CheckSubject(smol);
}

}  // namespace
}  // namespace swiftcache::engine::exec
