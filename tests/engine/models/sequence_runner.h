// SPDX-License-Identifier: Apache-2.0
// One model and the KV blocks of some sequences, for tests that want logits and nothing else.
//
//   SequenceRunner runner(config, weights, {.dtype = ComputeDtype::kF32});
//   std::vector<float> logits = runner.Logits(ids, /*first=*/ids.size() - 1);
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/backend/address_space.h"
#include "engine/backend/cpu/cpu_device.h"
#include "engine/loader/model_config.h"
#include "engine/loader/weights.h"
#include "engine/models/create_model.h"
#include "engine/models/decoder.h"

namespace swiftcache::engine::models {

/// Blocks of one sequence, in scattered order; on the CPU full of NaN where nothing was written.
class SequenceBlocks {
 public:
  SequenceBlocks(const backend::KvLayout& kv, int64_t tokens, backend::Device* device = nullptr) {
    const int64_t count = (tokens + kv.block_tokens - 1) / kv.block_tokens;
    backend::DeviceAddress base;
    if (device == nullptr) {
      host_.resize(count * kv.block_bytes(), std::byte{0xff});
      base = backend::AddressSpace().Of(host_.data());
    } else {
      auto memory = device->CreateKvMemory({.bytes = count * kv.block_bytes(), .block_bytes = kv.block_bytes()});
      EXPECT_TRUE(memory.ok()) << memory.status();
      memory_ = *std::move(memory);
      base = memory_->base();
    }
    for (int64_t b = 0; b < count; ++b) addresses_.push_back(base + (count - 1 - b) * kv.block_bytes());
  }
  std::span<const backend::DeviceAddress> addresses() const { return addresses_; }

 private:
  std::vector<std::byte> host_;
  std::unique_ptr<backend::KvMemory> memory_;
  std::vector<backend::DeviceAddress> addresses_;
};

/// Ends a step when so many layers of it are done.
class StopAfter final : public backend::LayerGate {
 public:
  explicit StopAfter(int64_t layers) : layers_(layers) {}
  backend::Fence Arrived(int64_t) override { return {}; }
  bool Read(int64_t layer, const backend::Fence&) override { return layer < layers_; }

 private:
  const int64_t layers_;
};

class SequenceRunner {
 public:
  struct Options {
    ComputeDtype dtype = ComputeDtype::kAuto;
    backend::KvDtype kv_dtype = backend::KvDtype::kBf16;
    backend::cpu::Isa max_isa = backend::cpu::kHighestIsa;
    backend::cpu::Activations activations = backend::cpu::Activations::kAuto;
    int64_t block_tokens = 16;
    int64_t chunk = 512;  // rows of a step
    int threads = 2;
    backend::Device* device = nullptr;  // null: a CPU of its own
  };
  SequenceRunner(const loader::ModelConfig& config, const loader::Weights& weights, const Options& options)
      : options_(options),
        cpu_({.threads = options.threads, .max_isa = options.max_isa, .activations = options.activations}) {
    kv_ = {config.num_layers, config.num_kv_heads, config.head_dim, options.block_tokens, options.kv_dtype};
    ModelOptions model{.kv = kv_, .max_batch_rows = options.chunk};
    model.dtype = options.dtype;
    auto created = CreateModel(config, weights, options.device == nullptr ? cpu_ : *options.device, model);
    EXPECT_TRUE(created.ok()) << created.status();
    model_ = *std::move(created);
  }

  Decoder& decoder() { return static_cast<Decoder&>(*model_); }
  const backend::KvLayout& kv() const { return kv_; }

  /// One step; logits of `logit_rows`.
  std::vector<float> Step(const std::vector<int32_t>& ids, const std::vector<backend::StepSequence>& sequences,
                          const std::vector<int32_t>& logit_rows) {
    ForwardResult result;
    model_->Run({.token_ids = ids, .sequences = sequences, .logit_rows = logit_rows}, nullptr, result).Wait();
    EXPECT_TRUE(result.status.ok()) << result.status;
    if (logit_rows.empty()) return {};
    const auto logits = decoder().Logits(static_cast<int64_t>(logit_rows.size()));
    EXPECT_TRUE(logits.ok()) << logits.status();
    return {logits->begin(), logits->end()};
  }

  /// Logits of positions `first` to the last, [ids.size() - first][vocab], in chunks of options.chunk.
  std::vector<float> Logits(std::span<const int32_t> ids, int64_t first) {
    SequenceBlocks blocks(kv_, ids.size(), options_.device);
    std::vector<float> out;
    const int64_t tokens = ids.size();
    for (int64_t at = 0; at < tokens; at += options_.chunk) {
      const int64_t rows = std::min(options_.chunk, tokens - at);
      std::vector<int32_t> wanted;
      for (int64_t r = std::max<int64_t>(0, first - at); r < rows; ++r) wanted.push_back(static_cast<int32_t>(r));
      const std::vector<float> part =
          Step({ids.begin() + at, ids.begin() + at + rows}, {{rows, at, blocks.addresses()}}, wanted);
      out.insert(out.end(), part.begin(), part.end());
    }
    return out;
  }

  /// The residual stream of the last position after `layers` layers.
  std::vector<float> Residual(std::span<const int32_t> ids, int64_t layers) {
    SequenceBlocks blocks(kv_, ids.size(), options_.device);
    const std::vector<int32_t> all(ids.begin(), ids.end());
    const std::vector<backend::StepSequence> sequences = {{static_cast<int64_t>(ids.size()), 0, blocks.addresses()}};
    StopAfter gate(layers);
    ForwardResult result;
    const std::vector<int32_t> last = {static_cast<int32_t>(ids.size()) - 1};
    model_->Run({.token_ids = all, .sequences = sequences, .logit_rows = last}, &gate, result).Wait();
    EXPECT_TRUE(result.status.ok()) << result.status;
    return *decoder().ResidualRow(result.cut_short ? last[0] : 0);
  }

 private:
  const Options options_;
  backend::cpu::CpuDevice cpu_;
  backend::KvLayout kv_;
  std::unique_ptr<Model> model_;
};

/// What a test run compares: the reference precision, and the two that serve.
struct Precision {
  std::string name;
  ComputeDtype dtype;
  backend::KvDtype kv_dtype;
  backend::cpu::Isa max_isa;
  double margin_limit;  // arg-max is compared where the reference's best two are further apart
  double logit_tolerance;
};

inline std::vector<Precision> AllPrecisions() {
  using backend::KvDtype;
  using backend::cpu::BestIsa;
  using backend::cpu::Isa;
  std::vector<Precision> out;
  for (const Isa isa : backend::cpu::kAllIsas) {
    if (BestIsa(isa) != isa) continue;
    const std::string name = backend::cpu::IsaName(isa);
    // kF32 has no kernels of its own on these.
    if (!MultipliesBf16(isa)) out.push_back({name + "/f32", ComputeDtype::kF32, KvDtype::kF32, isa, 1e-3, 1e-3});
    out.push_back({name + "/bf16", ComputeDtype::kBf16, KvDtype::kBf16, isa, 0.5, 1.5});
    out.push_back({name + "/bf16, KV int8", ComputeDtype::kBf16, KvDtype::kInt8, isa, 0.5, 1.5});
  }
  return out;
}

}  // namespace swiftcache::engine::models
