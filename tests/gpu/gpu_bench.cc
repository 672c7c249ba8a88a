// SPDX-License-Identifier: Apache-2.0
// How far the CUDA backend is from what this GPU can do, and how fast KV moves. Each figure stands beside its bound,
// measured in the same run:
//   bounds         products of bf16 [8192][8192] by [8192][8192], a plain copy on the device; beside the latter how fast
//                  memory is read alone, as a product of one row reads its weights
//   copies         slices of one layer out of leased blocks (block-major), beside the same bytes as one run
//   memory         a grant, a mapping, other memory: milliseconds a GiB
//   attention      of one layer alone, with 32 and with 16 queries a warp: FLOP/s over the bound
//   prefill        one prompt of a model of Qwen3-8B's shape with random weights: FLOP/s over the bound
//   decode         of one sequence and of 64 together: bytes of weights and KV read a step, over the plain copy's; with
//                  weights in bf16, and in Q4_0, of which the bytes are those of the file; of 64 of all lengths, of 32
//                  beside a prompt, and with tokens that are drawn; of 1 to 64 that come and go, beside the same steps in
//                  the order of their sequences: what it costs to go to and fro between graphs, and without graphs
//   streaming      a step that brings all its KV in layer by layer, beside the same step in place: what is not hidden
//   interference   decode while a copy engine reads the arena at the speed of the host's link, beside decode alone
//
//   swiftcache-gpu-bench [--json=PATH] [--small]        --small: a model of SmolLM2's shape, for small GPUs
//
// Exit code 3: no GPU.
#include <algorithm>
#include <array>
#include <atomic>
#include <fstream>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/backend/cuda/copy_lane.h"
#include "engine/backend/cuda/cuda_address.h"
#include "engine/backend/cuda/cuda_device.h"
#include "engine/backend/cuda/device_memory.h"
#include "engine/backend/cuda/native/cuda_driver.h"
#include "engine/backend/cuda/native/cuda_kernels.h"
#include "engine/models/create_model.h"
#include "engine/models/decoder.h"
#include "engine/transport/cuda_ipc/copy_plan.h"
#include "tests/gpu/bench_model.h"
#include "tests/gpu/bench_tools.h"

namespace swiftcache::gpu_bench {
namespace {

using engine::backend::DeviceAddress;
using engine::backend::StepSequence;
using engine::backend::StreamedBlock;
using engine::backend::WeightFormat;
using engine::loader::ModelConfig;
using engine::sample::SamplingParams;
using namespace engine::backend::cuda;  // NOLINT: a benchmark of that room

// Brings the slices of blocks into slots, two layers ahead, as layer streaming does.
class StreamGate final : public engine::backend::LayerGate {
 public:
  StreamGate(Driver& driver, const engine::backend::KvLayout& kv, std::span<const DeviceAddress> blocks)
      : lane_(driver), kv_(kv), blocks_(blocks) {
    slots_ = Take(DeviceBytes::Allocate(driver, 2 * static_cast<int64_t>(blocks.size()) * kv.slice_bytes()));
    for (size_t i = 0; i < blocks.size(); ++i) {
      streamed_.push_back({static_cast<int64_t>(i), {Slot(0, i), Slot(1, i)}});
    }
  }
  std::span<const StreamedBlock> streamed() const { return streamed_; }
  // Layers 0 and 1 are on their way before the step is.
  void Begin() {
    for (int64_t layer = 0; layer < 2; ++layer) Load(layer, {});
  }
  engine::backend::Fence Arrived(int64_t layer) override { return arrivals_[layer % 2]; }
  bool Read(int64_t layer, const engine::backend::Fence& read) override {
    if (layer + 2 < kv_.num_layers) Load(layer + 2, read);
    return true;
  }

 private:
  DeviceAddress Slot(int64_t parity, size_t block) const {
    const auto index = parity * static_cast<int64_t>(blocks_.size()) + static_cast<int64_t>(block);
    return ToDeviceAddress(slots_.address()) + index * kv_.slice_bytes();
  }
  void Load(int64_t layer, const engine::backend::Fence& after) {
    std::vector<DeviceCopy> pieces;
    for (size_t i = 0; i < blocks_.size(); ++i) {
      pieces.push_back({.to = ToNumber(Slot(layer % 2, i)),
                        .from = ToNumber(blocks_[i] + layer * kv_.slice_bytes()),
                        .bytes = kv_.slice_bytes()});
    }
    const auto copied = Take(lane_.Begin(engine::transport::cuda_ipc::PlanCopies(pieces), after));
    arrivals_[layer % 2] = engine::backend::Fence(copied);
  }

  CopyLane lane_;
  const engine::backend::KvLayout kv_;
  const std::span<const DeviceAddress> blocks_;
  DeviceBytes slots_;
  std::vector<StreamedBlock> streamed_;
  std::array<engine::backend::Fence, 2> arrivals_;
};

class Runner {
 public:
  Runner(const ModelConfig& config, WeightFormat format, engine::backend::Device& device, int64_t tokens,
         int64_t sequences)
      : config_(config), tokens_(tokens) {
    kv_ = {config.num_layers, config.num_kv_heads, config.head_dim, 16, engine::backend::KvDtype::kBf16};
    engine::models::ModelOptions options{.kv = kv_, .max_batch_rows = std::max(tokens, sequences)};
    options.max_logit_rows = sequences;
    const SharedWeights weights(config, format);
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
  const engine::backend::KvLayout& kv() const { return kv_; }
  DeviceAddress arena() const { return memory_->base(); }
  int64_t arena_bytes() const { return memory_->bytes(); }
  // Of the first sequence.
  std::span<const DeviceAddress> blocks(int64_t tokens) const {
    return std::span(blocks_).first(static_cast<size_t>(tokens / kv_.block_tokens));
  }
  /// What a step computes of one sequence.
  struct Part {
    int64_t context = 0, rows = 1;
  };
  // A token of each, greedy where `sampling` does not say otherwise. `gate`: the first sequence's context is streamed.
  double Step(const std::vector<Part>& parts, const SamplingParams& sampling, StreamGate* gate) {
    std::vector<int32_t> ids, last;
    std::vector<StepSequence> of;
    std::vector<engine::backend::SampleRow> samples;
    for (int64_t s = 0; s < static_cast<int64_t>(parts.size()); ++s) {
      for (int64_t r = 0; r < parts[s].rows; ++r)
        ids.push_back(static_cast<int32_t>((parts[s].context + r + s) * 7919 % config_.vocab_size));
      last.push_back(static_cast<int32_t>(ids.size() - 1));
      of.push_back({parts[s].rows, parts[s].context,
                    std::span(blocks_).subspan(s * blocks_each_, parts.size() == 1 ? 2 * blocks_each_ : blocks_each_)});
      samples.push_back({.logits_row = s, .params = sampling, .draw = {.seed = static_cast<uint64_t>(s)}});
    }
    engine::models::ForwardBatch batch = {.token_ids = ids, .sequences = of, .logit_rows = last, .samples = samples};
    const absl::Time begin = absl::Now();
    if (gate != nullptr) {
      batch.streamed = gate->streamed();
      gate->Begin();
    }
    engine::models::ForwardResult result;
    model_->Run(batch, gate, result).Wait();
    Check(result.status);
    return absl::ToDoubleSeconds(absl::Now() - begin);
  }
  double MedianStep(const std::vector<Part>& parts, int repeats, const SamplingParams& sampling = {.temperature = 0},
                    StreamGate* gate = nullptr) {
    std::vector<double> seconds;
    for (int i = 0; i < 5; ++i) Step(parts, sampling, gate);  // algorithms are chosen, graphs are made
    for (int i = 0; i < repeats; ++i) seconds.push_back(Step(parts, sampling, gate));
    return Median(std::move(seconds));
  }
  // `rows` of each of some sequences behind `context`.
  double MedianStep(int64_t sequences, int64_t context, int64_t rows, int repeats, StreamGate* gate = nullptr) {
    return MedianStep(std::vector<Part>(sequences, {context, rows}), repeats, {.temperature = 0}, gate);
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

// FLOP: of the products, of which the last layer has queries, keys and values alone (one row goes on), and of attention,
// which sees half of what stands before and behind each row.
void MeasurePrefill(const ModelConfig& c, Runner& runner, int64_t tokens, const Bounds& bounds, Rows& rows) {
  const auto n = static_cast<double>(tokens), layers = static_cast<double>(c.num_layers);
  const auto qkv = static_cast<double>((c.num_heads + 2 * c.num_kv_heads) * c.head_dim),
             behind = static_cast<double>(c.num_heads * c.head_dim + 3 * c.intermediate_size);
  const double products = 2 * n * static_cast<double>(c.hidden_size) * (layers * qkv + (layers - 1) * behind);
  const double attention = 2 * n * n * layers * static_cast<double>(c.num_heads * c.head_dim);
  const double seconds = runner.MedianStep(1, 0, tokens, 5), flops = (products + attention) / seconds;
  rows.Add({.what = absl::StrCat("prefill of ", tokens, " tokens"),
            .figure = seconds * 1e3,
            .unit = "ms",
            .share = flops / bounds.flops,
            .of = "the bound of products",
            .at_least = tokens == 8192 ? 0.6 : 0});
}

double BytesRead(const Runner& runner, const std::vector<Runner::Part>& parts) {
  double bytes = static_cast<double>(runner.decoder().weight_bytes());
  for (const Runner::Part& part : parts) bytes += static_cast<double>(part.context * runner.kv_bytes_a_token());
  return bytes;
}

void AddDecode(const Runner& runner, const std::vector<Runner::Part>& parts, double seconds, const std::string& what,
               double asked, const Bounds& bounds, Rows& rows) {
  rows.Add({.what = what,
            .figure = seconds * 1e3,
            .unit = "ms",
            .share = BytesRead(runner, parts) / seconds / bounds.bytes,
            .of = "a plain copy's bandwidth",
            .at_least = asked});
}

void MeasureDecode(Runner& runner, int64_t sequences, int64_t context, const char* how, double asked,
                   const Bounds& bounds, Rows& rows) {
  const std::vector<Runner::Part> parts(sequences, {.context = context});
  const std::string what = absl::StrCat("decode of ", sequences, " behind ", context, " tokens", how);
  AddDecode(runner, parts, runner.MedianStep(parts, 15), what, asked, bounds, rows);
}

// As an engine has it: contexts of all lengths, a prompt beside them, tokens that are drawn.
void MeasureMixed(Runner& runner, int64_t sequences, int64_t longest, const Bounds& bounds, Rows& rows) {
  std::vector<Runner::Part> all_lengths;
  for (int64_t s = 1; s <= sequences; ++s) all_lengths.push_back({.context = longest * s / sequences});
  const std::string what = absl::StrCat("decode of ", sequences, " behind ", longest / sequences, " to ", longest);
  AddDecode(runner, all_lengths, runner.MedianStep(all_lengths, 15), what + " tokens", 0, bounds, rows);
  const SamplingParams top_p = {.temperature = 0.8f, .top_p = 0.95f},
                       top_k = {.temperature = 0.8f, .top_p = 0.95f, .top_k = 40};
  AddDecode(runner, all_lengths, runner.MedianStep(all_lengths, 15, top_p), what + ", top_p", 0, bounds, rows);
  AddDecode(runner, all_lengths, runner.MedianStep(all_lengths, 15, top_k), what + ", top_p and top_k", 0, bounds,
            rows);
  std::vector<Runner::Part> beside_a_prompt(sequences / 2, {.context = longest});
  const double alone = runner.MedianStep(beside_a_prompt, 15);
  beside_a_prompt.push_back({.context = longest / 2, .rows = 512});
  rows.Add({.what = absl::StrCat("512 rows of a prompt, and decode of ", sequences / 2, " behind ", longest),
            .figure = runner.MedianStep(beside_a_prompt, 15) * 1e3,
            .unit = "ms",
            .share = alone * 1e3,
            .of = "ms without the prompt"});
}

// Each number of sequences has its own graphs, and no more are kept than KernelQueue::kVariants of a kind.
void MeasureComingAndGoing(Runner& runner, int64_t most, int64_t context, bool graphs, const Bounds& bounds,
                           Rows& rows) {
  std::mt19937 random(1);
  std::vector<int64_t> numbers;
  for (int64_t now = most / 2; numbers.size() < 400;) {
    now = std::clamp<int64_t>(now + static_cast<int64_t>(random() % 9) - 4, 1, most);
    numbers.push_back(now);
  }
  const auto seconds_of = [&] {
    double seconds = 0;
    for (const int64_t number : numbers) {
      seconds += runner.Step(std::vector<Runner::Part>(number, {.context = context}), {.temperature = 0}, nullptr);
    }
    return seconds / static_cast<double>(numbers.size());
  };
  const std::string what =
      absl::StrCat("decode of 1 to ", most, " that come and go behind ", context, graphs ? "" : ", without graphs");
  (void)seconds_of();  // algorithms are chosen
  const double seconds = seconds_of();
  double bytes = 0;
  for (const int64_t number : numbers)
    bytes += BytesRead(runner, std::vector<Runner::Part>(number, {.context = context}));
  rows.Add({.what = what,
            .figure = seconds * 1e3,
            .unit = "ms",
            .share = bytes / static_cast<double>(numbers.size()) / seconds / bounds.bytes,
            .of = "a plain copy's bandwidth"});
  if (!graphs) return;
  std::sort(numbers.begin(), numbers.end());
  const double sorted = seconds_of();
  rows.Add({.what = "the same steps sorted by their number of sequences",
            .figure = sorted * 1e3,
            .unit = "ms",
            .share = sorted / seconds,
            .of = "those that come and go"});
}

// The same step with its KV where it lies, and brought in layer by layer by the copy engine; in turns.
void MeasureStreaming(Driver& driver, Runner& runner, int64_t context, int64_t new_tokens, const Bounds& bounds,
                      Rows& rows) {
  StreamGate gate(driver, runner.kv(), runner.blocks(context));
  std::vector<double> in_place, streamed;
  for (int round = 0; round < 3; ++round) {
    in_place.push_back(runner.MedianStep(1, context, new_tokens, 9));
    streamed.push_back(runner.MedianStep(1, context, new_tokens, 9, &gate));
  }
  const double whole = Median(in_place), stall = std::max(0.0, Median(streamed) - whole);
  const double bytes = static_cast<double>(context * runner.kv_bytes_a_token());
  const std::string what = absl::StrCat(new_tokens, " tokens behind ", context, " that are streamed");
  rows.Add({.what = what + ": stall",
            .figure = stall * 1e3,
            .unit = "ms",
            .share = stall / whole,
            .of = "the step",
            .at_most = 0.001});
  // Here they are read and written by the memory that the step reads: a GPU of a cluster only writes what it streams.
  rows.Add({.what = what + ": what the copies take of the memory's time",
            .figure = 2 * bytes / bounds.bytes * 1e3,
            .unit = "ms"});
  rows.Add({.what = what + ": the link that hides them", .figure = bytes / whole * 1e-9, .unit = "GB/s"});
}

// A copy engine reads the arena into memory of the host meanwhile, at the speed of the host's link: as a peer's does over
// one that is as fast.
void MeasureInterference(Driver& driver, Runner& runner, int64_t sequences, int64_t context, Rows& rows) {
  constexpr int64_t kBytes = 64 << 20;
  const PinnedBytes host = Take(PinnedBytes::Allocate(driver, kBytes));
  CopyLane lane(driver);
  std::atomic<bool> stop = false;
  std::atomic<int64_t> copied = 0;
  std::vector<double> alone, beside;
  double link = 0;
  for (int round = 0; round < 3; ++round) {
    alone.push_back(runner.MedianStep(sequences, context, 1, 9));
    stop = false;
    copied = 0;
    const absl::Time begin = absl::Now();
    std::thread reader([&] {
      for (int64_t at = 0; !stop; at = (at + kBytes) % (runner.arena_bytes() - kBytes)) {
        Check(lane.Run({.runs = {{.to = reinterpret_cast<uint64_t>(host.data()),
                                  .from = ToNumber(runner.arena() + at),
                                  .bytes = kBytes}}},
                       {}));
        copied += kBytes;
      }
    });
    beside.push_back(runner.MedianStep(sequences, context, 1, 9));
    stop = true;
    reader.join();
    link = static_cast<double>(copied) / absl::ToDoubleSeconds(absl::Now() - begin);
  }
  const std::string what = absl::StrCat("decode of ", sequences, " behind ", context, " beside reads of the arena");
  rows.Add({.what = what + ": of a link of", .figure = link * 1e-9, .unit = "GB/s"});
  rows.Add({.what = what,
            .figure = Median(beside) * 1e3,
            .unit = "ms",
            .share = Median(beside) / Median(alone),
            .of = "alone",
            .at_most = 1.03});
}

void MeasureModel(const ModelConfig& c, Driver& driver, bool graphs, const Bounds& bounds, Rows& rows) {
  const int64_t prompt = 8192, context = 4096, batch = 64;
  const auto device = Take(CudaDevice::Create({.graphs = graphs}, driver, Take(CudaKernels::Create(driver))));
  Runner runner(c, WeightFormat::kBf16, *device, prompt, batch);
  if (!graphs) {
    MeasureDecode(runner, 1, context, ", without graphs", 0, bounds, rows);
    MeasureComingAndGoing(runner, batch, 1024, graphs, bounds, rows);
    return;
  }
  rows.Add({.what = "weights, and the time to load them from memory",
            .figure = runner.load_seconds(),
            .unit = "s",
            .share = static_cast<double>(runner.decoder().weight_bytes()) * 1e-9,
            .of = "GB"});
  for (const int64_t tokens : {512l, 2048l, prompt}) MeasurePrefill(c, runner, tokens, bounds, rows);
  MeasureDecode(runner, 1, 64, "", 0, bounds, rows);
  MeasureDecode(runner, 1, context, "", 0.75, bounds, rows);
  MeasureDecode(runner, 8, context, "", 0, bounds, rows);
  MeasureDecode(runner, batch, context, "", 0.65, bounds, rows);
  MeasureMixed(runner, batch, context, bounds, rows);
  MeasureComingAndGoing(runner, batch, 1024, graphs, bounds, rows);
  MeasureStreaming(driver, runner, context, 512, bounds, rows);
  MeasureStreaming(driver, runner, context, 1, bounds, rows);
  MeasureInterference(driver, runner, 1, context, rows);
  MeasureInterference(driver, runner, batch, context, rows);
}

// The same with a quarter of the weights' bytes. 64 rows are more than the kernel takes that reads them as stored.
void MeasureQuantized(const ModelConfig& c, Driver& driver, const Bounds& bounds, Rows& rows) {
  const auto device = Take(CudaDevice::Create(driver, Take(CudaKernels::Create(driver))));
  Runner runner(c, WeightFormat::kQ4_0, *device, 8192, 64);
  MeasureDecode(runner, 1, 64, ", Q4_0", 0, bounds, rows);
  for (const int64_t sequences : {1, 8, 64}) MeasureDecode(runner, sequences, 4096, ", Q4_0", 0, bounds, rows);
}

}  // namespace
}  // namespace swiftcache::gpu_bench

int main(int argc, char** argv) {
  using namespace swiftcache::gpu_bench;              // NOLINT: its own
  using namespace swiftcache::engine::backend::cuda;  // NOLINT: likewise
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
  const DeviceInfo& info = (*driver)->info();
  std::printf("%s, sm_%d%d, %d multiprocessors, a model of %s shape\n", info.name.c_str(), info.compute_major,
              info.compute_minor, info.multiprocessors, small ? "SmolLM2's" : "Qwen3-8B's");
  Rows rows;
  Bounds bounds;
  const auto write = [&] {  // after each part: a run that is cut off leaves what it has
    if (json_path.empty()) return;
    std::ofstream(json_path)
        << nlohmann::json({{"gpu", info.name}, {"model", small ? "SmolLM2" : "Qwen3-8B"}, {"rows", rows.all()}}).dump(1)
        << "\n";
  };
  {
    const std::unique_ptr<Kernels> kernels = Take(CudaKernels::Create(**driver));
    const Stream stream = Take((*driver)->CreateStream());
    bounds = MeasureBounds(**driver, *kernels, stream, rows);
    write();
    MeasureCopies(**driver, stream, rows);
    (*driver)->DestroyStream(stream);
  }
  MeasureMemory(**driver, rows);
  write();
  const ModelConfig config = small ? swiftcache::SmolLm2Config() : Qwen3Config();
  MeasureAttention({config.num_heads, config.num_kv_heads, config.head_dim}, **driver,
                   *Take(CudaKernels::Create(**driver)), bounds, rows);
  write();
  MeasureModel(config, **driver, /*graphs=*/true, bounds, rows);
  write();
  MeasureModel(config, **driver, /*graphs=*/false, bounds, rows);
  write();
  MeasureQuantized(config, **driver, bounds, rows);
  write();
  return 0;
}
