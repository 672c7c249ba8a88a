// SPDX-License-Identifier: Apache-2.0
// How far the CUDA backend is from what this GPU can do, and how fast KV moves. Each figure stands beside its bound,
// measured in the same run:
//   products   bf16 [8192][8192] by [8192][8192]: the bound of prefill
//   copies     a plain copy on the device, beside slices of one layer out of blocks (block-major) and out of one run
//   prefill    one prompt of a model of Qwen3-8B's shape with random weights: its products' FLOP/s over the bound
//   decode     of one sequence and of 64 together: bytes of weights and KV read a step, over the plain copy's
//
//   swiftcache-gpu-bench [--json=PATH] [--small]        --small: a model of SmolLM2's shape, for small GPUs
//
// Exit code 3: no GPU.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "engine/backend/bf16.h"
#include "engine/backend/cuda/cuda_device.h"
#include "engine/backend/cuda/device_memory.h"
#include "engine/backend/cuda/native/cuda_driver.h"
#include "engine/backend/cuda/native/cuda_kernels.h"
#include "engine/loader/weights.h"
#include "engine/models/create_model.h"
#include "engine/models/decoder.h"
#include "tests/fakes/synthetic_weights.h"

namespace swiftcache {
namespace {

using engine::backend::DeviceAddress;
using engine::backend::StepSequence;
using engine::loader::ModelConfig;
using namespace engine::backend::cuda;  // NOLINT: a benchmark of that room

[[noreturn]] void Fail(const std::string& message, int code = 1) {
  std::fprintf(stderr, "swiftcache-gpu-bench: %s\n", message.c_str());
  std::exit(code);
}

template <class T>
T Take(absl::StatusOr<T> value) {
  if (!value.ok()) Fail(std::string(value.status().message()));
  return *std::move(value);
}

void Check(const absl::Status& status) {
  if (!status.ok()) Fail(std::string(status.message()));
}

// Qwen3-8B's shape: 36 layers, 8.2 billion parameters.
ModelConfig Qwen3Config() {
  ModelConfig config;
  config.architecture = engine::loader::Architecture::kQwen3;
  config.num_layers = 36;
  config.hidden_size = 4096;
  config.intermediate_size = 12288;
  config.num_heads = 32;
  config.num_kv_heads = 8;
  config.head_dim = 128;
  config.vocab_size = 151936;
  config.max_position = 40960;
  config.rms_eps = 1e-6;
  config.rope_theta = 1e6;
  config.qk_norm = true;
  return config;
}

// Every tensor is the beginning of one run of small random bf16 numbers.
class SharedWeights final : public engine::loader::Weights {
 public:
  explicit SharedWeights(const ModelConfig& c) : numbers_(c.vocab_size * c.hidden_size) {
    uint64_t state = 1;
    for (uint16_t& number : numbers_) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      number = engine::backend::ToBf16((static_cast<float>(state >> 40) * 0x1p-24f - 0.5f) * 0.05f);
    }
    ForEachTensor(c, [this](const std::string& name, int64_t rows, int64_t cols) { Add(name, rows, cols); });
  }

 private:
  void Add(const std::string& name, int64_t rows, int64_t cols) {
    tensors_[name] = {.format = engine::backend::WeightFormat::kBf16,
                      .data = reinterpret_cast<const std::byte*>(numbers_.data()),
                      .rows = rows,
                      .cols = cols,
                      .row_bytes = cols * 2};
  }
  std::vector<uint16_t> numbers_;
};

// Seconds of what `submit` sets going on the stream: the median of some, after one that does not count.
class Stopwatch {
 public:
  Stopwatch(Driver& driver, Stream stream) : driver_(driver), stream_(stream) {}
  double Time(const std::function<void()>& submit, int repeats = 7) {
    std::vector<double> seconds;
    for (int i = 0; i <= repeats; ++i) {
      driver_.Finish(stream_);
      const absl::Time begin = absl::Now();
      submit();
      driver_.Finish(stream_);
      if (i > 0) seconds.push_back(absl::ToDoubleSeconds(absl::Now() - begin));
    }
    std::nth_element(seconds.begin(), seconds.begin() + repeats / 2, seconds.end());
    return seconds[repeats / 2];
  }

 private:
  Driver& driver_;
  const Stream stream_;
};

struct Bounds {
  double flops = 0, bytes = 0;  // a second
};

Bounds MeasureBounds(Driver& driver, Kernels& kernels, Stream stream, nlohmann::json& out) {
  Stopwatch stopwatch(driver, stream);
  constexpr int64_t n = 8192, bytes = 1ll << 30;
  const DeviceBytes a = Take(DeviceBytes::Allocate(driver, bytes)), b = Take(DeviceBytes::Allocate(driver, bytes));
  Check(driver.Zero(stream, a.address(), bytes));
  Check(driver.Zero(stream, b.address(), bytes));
  const ProductOp product = {.in = a.as<void>(),
                             .rows = n,
                             .weight = a.as<engine::backend::Bf16>() + n * n,
                             .outputs = n,
                             .cols = n,
                             .out = b.as<float>()};
  Bounds bounds;
  bounds.flops = 2.0 * n * n * n / stopwatch.Time([&] { Check(kernels.Multiply(stream, product)); });
  const DeviceCopy copy = {.to = b.address(), .from = a.address(), .bytes = bytes};
  bounds.bytes = 2.0 * bytes / stopwatch.Time([&] { Check(driver.Copy(stream, {&copy, 1})); });
  std::printf("bounds    products of bf16 %.0f TFLOP/s; a plain copy moves %.0f GB/s, reads and writes together\n",
              bounds.flops * 1e-12, bounds.bytes * 1e-9);
  out["bounds"] = {{"gemm_tflops", bounds.flops * 1e-12}, {"copy_gb_s", bounds.bytes * 1e-9}};
  return bounds;
}

// One layer's slices of 256 blocks: out of blocks that lie one after the other, and as one run.
void MeasureCopies(Driver& driver, Stream stream, const Bounds& bounds, nlohmann::json& out) {
  Stopwatch stopwatch(driver, stream);
  for (const int64_t slice : {8ll << 10, 32ll << 10, 64ll << 10, 256ll << 10}) {
    constexpr int64_t layers = 36, blocks = 256;
    const DeviceBytes from = Take(DeviceBytes::Allocate(driver, slice * layers * blocks));
    const DeviceBytes to = Take(DeviceBytes::Allocate(driver, slice * blocks));
    const DeviceCopy2D grid = {.to = to.address(),
                               .from = from.address() + 3 * static_cast<uint64_t>(slice),
                               .to_stride = slice,
                               .from_stride = slice * layers,
                               .bytes = slice,
                               .rows = blocks};
    std::vector<DeviceCopy> single;
    for (int64_t i = 0; i < blocks; ++i) {
      single.push_back({.to = grid.to + i * slice, .from = grid.from + i * grid.from_stride, .bytes = slice});
    }
    const DeviceCopy whole = {.to = to.address(), .from = from.address(), .bytes = slice * blocks};
    const double moved = 2.0 * static_cast<double>(slice * blocks);
    const double by_grid = moved / stopwatch.Time([&] { Check(driver.Copy2D(stream, grid)); });
    const double by_slice = moved / stopwatch.Time([&] { Check(driver.Copy(stream, single)); });
    const double at_once = moved / stopwatch.Time([&] { Check(driver.Copy(stream, {&whole, 1})); });
    std::printf(
        "copies    %4ld KiB slices of %ld blocks: 2D %.0f GB/s (%.2f of one run), one by one %.0f GB/s (%.2f)\n",
        slice >> 10, blocks, by_grid * 1e-9, by_grid / at_once, by_slice * 1e-9, by_slice / at_once);
    out["copies"].push_back({{"slice_bytes", slice},
                             {"grid_gb_s", by_grid * 1e-9},
                             {"single_gb_s", by_slice * 1e-9},
                             {"run_gb_s", at_once * 1e-9},
                             {"grid_of_plain", by_grid / bounds.bytes}});
  }
}

class Runner {
 public:
  Runner(const ModelConfig& config, engine::backend::Device& device, int64_t tokens, int64_t sequences)
      : config_(config), tokens_(tokens) {
    kv_ = {config.num_layers, config.num_kv_heads, config.head_dim, 16, engine::backend::KvDtype::kBf16};
    engine::models::ModelOptions options{.kv = kv_, .max_batch_rows = std::max(tokens, sequences)};
    options.max_logit_rows = sequences;
    const SharedWeights weights(config);
    const absl::Time begin = absl::Now();
    model_ = Take(engine::models::CreateModel(config, weights, device, options));
    load_seconds_ = absl::ToDoubleSeconds(absl::Now() - begin);
    blocks_each_ = tokens / 16 / 2 + 2;  // half a prompt each; the first sequence's prompt takes two's

    memory_ = Take(device.CreateKvMemory(
        {.bytes = blocks_each_ * sequences * kv_.block_bytes(), .block_bytes = kv_.block_bytes()}));
    for (int64_t i = 0; i < blocks_each_ * sequences; ++i) blocks_.push_back(memory_->base() + i * kv_.block_bytes());
  }
  double load_seconds() const { return load_seconds_; }
  const engine::models::Decoder& decoder() const { return *model_; }
  int64_t kv_bytes_a_token() const { return kv_.block_bytes() / kv_.block_tokens; }
  // `rows` of each sequence behind `context`, and a greedy token of each.
  double Step(int64_t sequences, int64_t context, int64_t rows) {
    std::vector<int32_t> ids, last;
    std::vector<StepSequence> of;
    for (int64_t s = 0; s < sequences; ++s) {
      for (int64_t r = 0; r < rows; ++r)
        ids.push_back(static_cast<int32_t>((context + r + s) * 7919 % config_.vocab_size));
      last.push_back(static_cast<int32_t>(ids.size() - 1));
      of.push_back({rows, context,
                    std::span(blocks_).subspan(s * blocks_each_, sequences == 1 ? 2 * blocks_each_ : blocks_each_)});
    }
    std::vector<engine::backend::SampleRow> samples(sequences);
    for (int64_t s = 0; s < sequences; ++s) samples[s] = {.logits_row = s, .params = {.temperature = 0}};
    const absl::Time begin = absl::Now();
    engine::models::ForwardResult result;
    model_->Run({.token_ids = ids, .sequences = of, .logit_rows = last, .samples = samples}, nullptr, result).Wait();
    Check(result.status);
    return absl::ToDoubleSeconds(absl::Now() - begin);
  }
  double Median(int64_t sequences, int64_t context, int64_t rows, int repeats) {
    std::vector<double> seconds;
    Step(sequences, context, rows);
    for (int i = 0; i < repeats; ++i) seconds.push_back(Step(sequences, context, rows));
    std::nth_element(seconds.begin(), seconds.begin() + repeats / 2, seconds.end());
    return seconds[repeats / 2];
  }

 private:
  const ModelConfig config_;
  const int64_t tokens_;
  engine::backend::KvLayout kv_;
  double load_seconds_ = 0;
  std::unique_ptr<engine::models::Decoder> model_;
  int64_t blocks_each_ = 0;
  std::unique_ptr<engine::backend::KvMemory> memory_;
  std::vector<DeviceAddress> blocks_;
};

void MeasureModel(const ModelConfig& c, engine::backend::Device& device, const Bounds& bounds, nlohmann::json& out) {
  const int64_t prompt = 8192, context = 4096, batch = 64;
  Runner runner(c, device, prompt, batch);
  const double weights = static_cast<double>(runner.decoder().weight_bytes());
  const double layer_weights =
      static_cast<double>(c.num_layers) * static_cast<double>(c.hidden_size) *
      static_cast<double>((2 * c.num_heads + 2 * c.num_kv_heads) * c.head_dim + 3 * c.intermediate_size);
  std::printf("model     %s, weights %.1f GB, loaded in %.1f s\n", runner.decoder().backend().name().c_str(),
              weights * 1e-9, runner.load_seconds());
  for (const int64_t tokens : {512l, 2048l, prompt}) {
    const double seconds = runner.Median(1, 0, tokens, 3), flops = 2 * layer_weights * static_cast<double>(tokens);
    std::printf("prefill   %5ld tokens: %.1f ms, %.0f tokens/s; its products alone %.2f of the bound\n", tokens,
                seconds * 1e3, static_cast<double>(tokens) / seconds, flops / seconds / bounds.flops);
    out["prefill"].push_back(
        {{"tokens", tokens}, {"ms", seconds * 1e3}, {"of_gemm_peak", flops / seconds / bounds.flops}});
  }
  const auto decode = [&](int64_t sequences, int64_t context) {
    const double seconds = runner.Median(sequences, context, 1, 9);
    const double bytes = weights + static_cast<double>(sequences * context * runner.kv_bytes_a_token());
    std::printf("decode    %2ld at %5ld tokens: %.2f ms, %.0f tokens/s; reads %.0f GB/s, %.2f of a plain copy's\n",
                sequences, context, seconds * 1e3, static_cast<double>(sequences) / seconds, bytes / seconds * 1e-9,
                bytes / seconds / bounds.bytes);
    out["decode"].push_back({{"sequences", sequences},
                             {"context", context},
                             {"ms", seconds * 1e3},
                             {"of_bandwidth", bytes / seconds / bounds.bytes}});
  };
  decode(1, 64);
  decode(1, context);
  decode(batch, context);
}

}  // namespace
}  // namespace swiftcache

int main(int argc, char** argv) {
  using namespace swiftcache;
  std::string json_path;
  bool small = false;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    if (flag.rfind("--json=", 0) == 0) {
      json_path = flag.substr(7);
    } else if (flag == "--small") {
      small = true;
    } else {
      Fail("unknown flag " + flag + ", wanted --json=PATH or --small", 2);
    }
  }
  auto driver = OpenDriver();
  if (!driver.ok()) Fail(std::string(driver.status().message()), 3);
  nlohmann::json out;
  out["gpu"] = (*driver)->info().name;
  std::printf("gpu       %s, sm_%d%d, %d multiprocessors\n", (*driver)->info().name.c_str(),
              (*driver)->info().compute_major, (*driver)->info().compute_minor, (*driver)->info().multiprocessors);
  {
    const std::unique_ptr<Kernels> kernels = Take(CudaKernels::Create(**driver));
    const Stream stream = Take((*driver)->CreateStream());
    const Bounds bounds = MeasureBounds(**driver, *kernels, stream, out);
    MeasureCopies(**driver, stream, bounds, out);
    (*driver)->DestroyStream(stream);
    const auto device = Take(CudaDevice::Create(**driver, Take(CudaKernels::Create(**driver))));
    MeasureModel(small ? SmolLm2Config() : Qwen3Config(), *device, bounds, out);
  }
  if (!json_path.empty()) std::ofstream(json_path) << out.dump(1) << "\n";
  return 0;
}
