// SPDX-License-Identifier: Apache-2.0
// How far the engine's arithmetic is from what the machine can do, in two ratios:
//   prefill: GFLOP/s of the products of a prompt over the whole prefill's time, in steps as the engine makes them, against
//            oneDNN's GFLOP/s on the products of one step alone;
//   decode:  a step of one sequence or of several, against reading every weight and their KV once as fast as
//            memory gives them (bandwidth.h).
// Engine, library and bandwidth loop take turns, since shared machines change their speed from minute to minute.
//
//   swiftcache-engine-bench [--model PATH] [--threads N] [--isa amx|avx512_bf16|avx2|...] [--f32] [--kv bf16|f32|int8]
//                           [--activations auto|f32|bf16|int8] [--prompt N] [--step N] [--context N] [--sequences N]
//                           [--repeats N] [--json]
// --prompt 0 and --sequences 0 leave a half out. --step: tokens of a prompt in one step; as by default in the engine.
// --json: one object instead of the text.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "engine/backend/address_space.h"
#include "engine/backend/cpu/cpu_device.h"
#include "engine/backend/cpu/isa.h"
#include "engine/backend/cpu/memory.h"
#include "engine/exec/engine_options.h"
#include "engine/loader/checkpoint.h"
#include "engine/models/create_model.h"
#include "engine/models/decoder.h"
#include "tests/bench/bandwidth.h"
#include "tests/bench/fail.h"
#include "tests/bench/isa_flag.h"
#include "tests/bench/library_gemm.h"
#include "tests/bench/timing.h"
#include "tests/fakes/synthetic_weights.h"

namespace swiftcache {
namespace {

using engine::backend::cpu::Activations;
using engine::backend::cpu::BestIsa;
using engine::backend::cpu::HostMemory;
using engine::backend::cpu::Isa;
using engine::loader::ModelConfig;

struct Flags {
  std::string model;
  int threads = static_cast<int>(std::thread::hardware_concurrency());
  Isa isa = engine::backend::cpu::kHighestIsa;
  bool f32 = false;
  engine::backend::KvDtype kv = engine::backend::KvDtype::kBf16;
  Activations activations = Activations::kAuto;
  int64_t prompt = 512;
  int64_t step = engine::exec::EngineOptions{}.max_num_batched_tokens;
  int64_t context = 64;
  int64_t sequences = 1;
  int repeats = 7;
  bool json = false;
};

engine::backend::KvDtype KvDtypeOf(const std::string& name) {
  using engine::backend::KvDtype;
  for (const KvDtype dtype : {KvDtype::kBf16, KvDtype::kF32, KvDtype::kInt8}) {
    if (name == NameOf(dtype)) return dtype;
  }
  Fail("--kv is " + name + ", wanted bf16, f32 or int8");
}

Activations ActivationsOf(const std::string& name) {
  const std::optional<Activations> activations = engine::backend::cpu::ActivationsOfName(name);
  if (!activations) Fail("--activations is " + name + ", wanted auto, f32, bf16 or int8");
  return *activations;
}

Flags Parse(int argc, char** argv) {
  Flags flags;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (name == "--f32" || name == "--json") {
      (name == "--json" ? flags.json : flags.f32) = true;
      if (flags.f32) flags.kv = engine::backend::KvDtype::kF32;
      continue;
    }
    if (i + 1 >= argc) Fail(name + " wants a value");
    const std::string value = argv[++i];
    if (name == "--model")
      flags.model = value;
    else if (name == "--threads")
      flags.threads = std::atoi(value.c_str());
    else if (name == "--isa")
      flags.isa = IsaOf(value);
    else if (name == "--kv")
      flags.kv = KvDtypeOf(value);
    else if (name == "--activations")
      flags.activations = ActivationsOf(value);
    else if (name == "--prompt")
      flags.prompt = std::atoll(value.c_str());
    else if (name == "--step")
      flags.step = std::atoll(value.c_str());
    else if (name == "--context")
      flags.context = std::atoll(value.c_str());
    else if (name == "--sequences")
      flags.sequences = std::atoll(value.c_str());
    else if (name == "--repeats")
      flags.repeats = std::atoi(value.c_str());
    else
      Fail("unknown flag " + name);
  }
  if (flags.threads < 1 || flags.step < 1 || flags.context < 1 || flags.repeats < 1) Fail("a number below 1");
  if (flags.prompt < 0 || flags.sequences < 0 || flags.prompt + flags.sequences == 0)
    Fail("wanted --prompt or --sequences above 0");
  return flags;
}

std::string CpuName() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("model name", 0) == 0) return line.substr(line.find(':') + 2);
  }
  return "unknown CPU";
}

// Sequences of its own on a model.
class Runner {
 public:
  Runner(const ModelConfig& config, const engine::loader::Weights& weights, const Flags& flags)
      : vocab_(config.vocab_size),
        step_(flags.step),
        device_({.threads = flags.threads, .max_isa = flags.isa, .activations = flags.activations}) {
    const int64_t tokens = std::max(flags.prompt, flags.context + 64);
    engine::models::ModelOptions options;
    options.kv = {config.num_layers, config.num_kv_heads, config.head_dim, 16, flags.kv};
    options.max_batch_rows = std::max(flags.step, flags.sequences);
    options.max_logit_rows = std::max<int64_t>(1, flags.sequences);
    options.dtype = flags.f32 ? engine::models::ComputeDtype::kF32 : engine::models::ComputeDtype::kAuto;
    load_seconds_ = SecondsOf([&] {
      auto model = engine::models::CreateModel(config, weights, device_, options);
      if (!model.ok()) Fail(std::string(model.status().message()));
      model_ = *std::move(model);
    });
    const int64_t blocks = (tokens + 15) / 16, bytes = options.kv.block_bytes();
    kv_bytes_of_token_ = bytes / 16;
    blocks_.resize(std::max<int64_t>(1, flags.sequences));
    const int64_t all = blocks * static_cast<int64_t>(blocks_.size());
    arena_ = *HostMemory::Allocate(all * bytes);
    const engine::backend::DeviceAddress base = engine::backend::AddressSpace().Of(arena_.data());
    for (int64_t b = 0; b < all; ++b) blocks_[b / blocks].push_back(base + b * bytes);
  }
  /// `rows` of each of the first `sequences`, behind `context` tokens; `logits`: of the last row of each.
  void Step(int64_t context, int64_t rows, int64_t sequences, bool logits) {
    std::vector<int32_t> ids(rows * sequences), last;
    std::vector<engine::backend::StepSequence> step;
    for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>((context + i) * 7919 % vocab_);
    for (int64_t s = 0; s < sequences; ++s) {
      step.push_back({rows, context, blocks_[s]});
      if (logits) last.push_back(static_cast<int32_t>((s + 1) * rows - 1));
    }
    engine::models::ForwardResult result;
    model_->Run({.token_ids = ids, .sequences = step, .logit_rows = last}, nullptr, result).Wait();
    if (!result.status.ok()) Fail("a step failed");
  }
  /// Gives each of the first `sequences` its first `tokens`, together, in steps of at most --step; logits of the last.
  void Prefill(int64_t tokens, int64_t sequences) {
    for (int64_t done = 0, rows; done < tokens; done += rows) {
      rows = std::min(tokens - done, std::max<int64_t>(1, step_ / sequences));
      Step(done, rows, sequences, done + rows == tokens);
    }
  }
  double load_seconds() const { return load_seconds_; }
  int64_t kv_bytes_of_token() const { return kv_bytes_of_token_; }
  const engine::models::Decoder& decoder() const { return static_cast<engine::models::Decoder&>(*model_); }

 private:
  int64_t vocab_, step_;
  engine::backend::cpu::CpuDevice device_;
  double load_seconds_ = 0;
  int64_t kv_bytes_of_token_ = 0;
  std::unique_ptr<engine::models::Model> model_;
  HostMemory arena_;
  std::vector<std::vector<engine::backend::DeviceAddress>> blocks_;  // of each sequence
};

// The products of one step of a prompt, with the library: the four of each layer, but of the last one the first alone, since
// what follows is computed for the rows alone whose logits are wanted.
class LibraryRunner {
 public:
  LibraryRunner(const ModelConfig& c, int64_t rows, bool bf16) : layers_(c.num_layers) {
    const int64_t q = c.num_heads * c.head_dim, qkv = q + 2 * c.num_kv_heads * c.head_dim;
    products_.emplace_back(rows, c.hidden_size, qkv, bf16);
    products_.emplace_back(rows, q, c.hidden_size, bf16);
    products_.emplace_back(rows, c.hidden_size, 2 * c.intermediate_size, bf16);
    products_.emplace_back(rows, c.intermediate_size, c.hidden_size, bf16);
    for (const LibraryGemm& product : products_) flops_ += (layers_ - 1) * product.flops();
    flops_ += products_[0].flops();
  }
  void Run() {
    for (int64_t l = 0; l + 1 < layers_; ++l) {
      for (LibraryGemm& product : products_) product.Run();
    }
    products_[0].Run();
  }
  double flops() const { return flops_; }

 private:
  int64_t layers_;
  std::vector<LibraryGemm> products_;
  double flops_ = 0;
};

// What a step reads of the file: all but the embedding's table where the logits have a matrix of their own.
int64_t StoredBytes(const engine::loader::Weights& weights) {
  const bool tied = weights.tensors().count("lm_head.weight") == 0;
  int64_t bytes = 0;
  for (const auto& [name, source] : weights.tensors()) {
    if (tied || name != "model.embed_tokens.weight") bytes += source.rows * source.row_bytes;
  }
  return bytes;
}

void RestFromLibrary() { absl::SleepFor(absl::Milliseconds(30)); }  // its OpenMP threads spin on for a while

struct Figures {
  std::string backend, library;
  double weight_bytes = 0, stored_bytes = 0, kv_bytes = 0, load_seconds = 0, library_flops = 0;
  std::vector<double> prefill, gemm, decode;  // seconds of each repeat; none where that half is left out
  std::vector<double> read, share;  // of a few decodes: seconds of the best pass beside them, over those of a decode
};

Figures Measure(const ModelConfig& config, const engine::loader::Weights& weights, const Flags& flags) {
  constexpr int kDecodeTokens = 24, kBetweenReads = 4;
  Runner runner(config, weights, flags);
  const bool library_bf16 = !flags.f32 && MultipliesBf16(BestIsa(flags.isa));
  const int64_t rows = std::clamp<int64_t>(flags.prompt, 1, flags.step);
  LibraryRunner library(config, rows, library_bf16);
  const double steps = static_cast<double>(flags.prompt) / rows;
  Figures f{.backend = std::string(runner.decoder().backend().name()),
            .library = library_bf16 ? "bf16" : "f32",
            .weight_bytes = static_cast<double>(runner.decoder().weight_bytes()),
            .stored_bytes = static_cast<double>(StoredBytes(weights)),
            .kv_bytes = static_cast<double>(flags.sequences * flags.context * runner.kv_bytes_of_token()),
            .load_seconds = runner.load_seconds(),
            .library_flops = steps * library.flops()};
  BandwidthLoop bandwidth(static_cast<int64_t>(f.weight_bytes + f.kv_bytes), flags.threads);
  if (flags.prompt > 0) runner.Prefill(flags.prompt, 1);
  if (flags.sequences > 0) runner.Prefill(flags.context, flags.sequences);
  for (int repeat = 0; repeat < flags.repeats; ++repeat) {
    if (flags.prompt > 0) {
      f.gemm.push_back(steps * SecondsOf([&] { library.Run(); }));
      RestFromLibrary();
      f.prefill.push_back(SecondsOf([&] { runner.Prefill(flags.prompt, 1); }));
    }
    if (flags.sequences == 0) continue;
    const auto decode = [&](int64_t context, int tokens) {
      return SecondsOf([&] {
               for (int i = 0; i < tokens; ++i) runner.Step(context + i, 1, flags.sequences, true);
             }) /
             tokens;
    };
    f.decode.push_back(decode(flags.context, kDecodeTokens));
    double before = bandwidth.BestSeconds();
    for (int tokens = 0; tokens < kDecodeTokens; tokens += kBetweenReads) {
      const double step = decode(flags.context + tokens, kBetweenReads), after = bandwidth.BestSeconds();
      f.read.push_back(std::min(before, after));
      f.share.push_back(f.read.back() / step);
      before = after;
    }
  }
  return f;
}

// Of the bytes that a step's packed weights and KV have, those of the file's weights and KV.
double StoredPart(const Figures& f) { return (f.stored_bytes + f.kv_bytes) / (f.weight_bytes + f.kv_bytes); }

double MedianRatio(std::vector<double> above, const std::vector<double>& below) {
  for (size_t i = 0; i < above.size(); ++i) above[i] /= below[i];
  return Median(above);
}

void PrintText(const Figures& f, const Flags& flags) {
  std::printf("machine   %s, %d threads\nengine    %s, weights %.1f MB of %.1f stored, loaded and packed in %.2f s\n",
              CpuName().c_str(), flags.threads, f.backend.c_str(), f.weight_bytes * 1e-6, f.stored_bytes * 1e-6,
              f.load_seconds);
  if (!f.prefill.empty()) {
    std::printf("prefill   %ld tokens: %.1f ms, %.0f tokens/s, %.1f GFLOP/s; oneDNN %s %.1f GFLOP/s; ratio %.2f\n",
                flags.prompt, Median(f.prefill) * 1e3, flags.prompt / Median(f.prefill),
                f.library_flops / Median(f.prefill) * 1e-9, f.library.c_str(), f.library_flops / Median(f.gemm) * 1e-9,
                MedianRatio(f.gemm, f.prefill));
  }
  if (f.decode.empty()) return;
  const double bytes = f.weight_bytes + f.kv_bytes;
  std::printf("decode    %ld together at %ld tokens: %.2f ms, %.1f tokens/s; memory reads %.1f MB at %.1f GB/s = ",
              flags.sequences, flags.context, Median(f.decode) * 1e3, flags.sequences / Median(f.decode), bytes * 1e-6,
              bytes / Median(f.read) * 1e-9);
  const double share = Median(f.share);
  std::printf("%.2f ms; ratio %.2f, on stored bytes %.2f\n", Median(f.read) * 1e3, share, share * StoredPart(f));
}

// Tokens and bytes a second; `share`: of the library, or of the memory bandwidth on the bytes that are read; on the file's
// bytes `stored_share`.
void PrintJson(const Figures& f, const Flags& flags) {
  nlohmann::json json = {{"machine", CpuName()},
                         {"backend", f.backend},
                         {"weight_bytes", f.weight_bytes},
                         {"stored_bytes", f.stored_bytes}};
  if (!f.prefill.empty()) {
    json["prefill"] = {{"tokens_s", flags.prompt / Median(f.prefill)},
                       {"library_flop_s", f.library_flops / Median(f.gemm)},
                       {"share", MedianRatio(f.gemm, f.prefill)}};
  }
  if (!f.decode.empty()) {
    json["decode"] = {{"tokens_s", flags.sequences / Median(f.decode)},
                      {"memory_bytes_s", (f.weight_bytes + f.kv_bytes) / Median(f.read)},
                      {"share", Median(f.share)},
                      {"stored_share", Median(f.share) * StoredPart(f)}};
  }
  std::printf("%s\n", json.dump().c_str());
}

void Run(const ModelConfig& config, const engine::loader::Weights& weights, const Flags& flags) {
  const Figures figures = Measure(config, weights, flags);
  if (flags.json) return PrintJson(figures, flags);
  std::printf("model     %s\n", flags.model.empty() ? "random weights of SmolLM2-135M's shape" : flags.model.c_str());
  PrintText(figures, flags);
}

}  // namespace
}  // namespace swiftcache

int main(int argc, char** argv) {
  using namespace swiftcache;
  const Flags flags = Parse(argc, argv);
  if (flags.isa < Isa::kAvx512) LimitLibraryToAvx2();
  if (flags.model.empty()) {
    const ModelConfig config = SmolLm2Config();
    Run(config, SyntheticWeights(config), flags);
    return 0;
  }
  auto checkpoint = engine::loader::OpenCheckpoint(flags.model);
  if (!checkpoint.ok()) Fail(std::string(checkpoint.status().message()));
  Run(checkpoint->config, *checkpoint->weights, flags);
}
