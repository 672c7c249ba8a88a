// SPDX-License-Identifier: Apache-2.0
// How far matrix products alone are from the processor's multiply-add instructions: GOP/s of both, in turns, since shared
// machines change their speed from minute to minute. A Markdown table; one line each for weights, shape and rows.
//
//   swiftcache-gemm-bench [--threads N] [--isa amx|avx512_bf16|avx2|...] [--rows 8,256,512] [--repeats N]
//                        [--weights Q8_0,Q6_K]
#include <glog/logging.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "engine/backend/cpu/thread_pool.h"
#include "tests/bench/isa_flag.h"
#include "tests/bench/peaks.h"
#include "tests/bench/timing.h"
#include "tests/engine/backend/cpu/backend_test_util.h"

namespace swiftcache {
namespace {

using namespace engine::backend;
using namespace engine::backend::cpu;

struct Flags {
  int threads = static_cast<int>(std::thread::hardware_concurrency());
  std::string isa = IsaName(kHighestIsa);
  std::vector<int64_t> rows = {8, 256, 512};
  int repeats = 9;
  std::vector<std::string> weights;  // empty: all
};

struct Shape {
  int64_t inputs, outputs;
};

// The products of an MLP, which are most of a model's: SmolLM2, hidden 2,048 and 3,072.
constexpr Shape kShapes[] = {{576, 3072}, {1536, 576}, {2048, 11264}, {5632, 2048}, {3072, 16384}, {8192, 3072}};

struct Case {
  WeightFormat format;  // as they lie packed
  Precision precision;
  int bits;  // of a weight
};
constexpr Case kCases[] = {{WeightFormat::kF32, Precision::kF32, 32},  {WeightFormat::kBf16, Precision::kBf16, 16},
                           {WeightFormat::kQ8_0, Precision::kBf16, 8}, {WeightFormat::kQ4_0, Precision::kBf16, 4},
                           {WeightFormat::kQ4_1, Precision::kBf16, 4}, {WeightFormat::kQ4_K, Precision::kBf16, 4},
                           {WeightFormat::kQ5_0, Precision::kBf16, 5}, {WeightFormat::kQ5_K, Precision::kBf16, 5},
                           {WeightFormat::kQ6_K, Precision::kBf16, 6}};

Arithmetic ArithmeticOf(const Case& c, Isa isa) {
  if (c.bits <= 8) return Arithmetic::kInt8;
  return c.bits == 16 && MultipliesBf16(isa) ? Arithmetic::kBf16 : Arithmetic::kF32;
}

void Measure(const Flags& flags, const Case& c, const Shape& shape, int64_t rows, Isa isa, ThreadPool& pool) {
  const Arithmetic arithmetic = ArithmeticOf(c, isa);
  const Peak peak = PeakOf(isa, arithmetic, c.bits);
  auto backend = MakeBackend({.threads = flags.threads, .precision = c.precision, .max_isa = isa, .max_rows = rows});
  std::vector<float> values;
  std::optional<QuantizedWeights> blocks;
  WeightSource source;
  if (c.bits <= 8) {
    source = blocks.emplace(c.format, shape.outputs, shape.inputs, 1).source();
  } else {
    values = RandomVector(shape.outputs * shape.inputs, 1);
    source = SourceOf(values, shape.outputs, shape.inputs);  // packing rounds to bf16 what is to be so
  }
  const auto weight = *backend->PackMatrix({&source, 1}, Exactness::kUsual);
  const auto in = MakeBuffer(*backend, RandomVector(rows * shape.inputs, 1), shape.inputs);
  const auto out = *backend->Allocate(rows, shape.outputs);
  const double operations = 2.0 * static_cast<double>(rows * shape.inputs * shape.outputs);
  const int64_t products = 1 + static_cast<int64_t>(5e9 / operations), loops = 1'000'000'000 / peak.operations;
  const auto run = [&] {
    for (int64_t i = 0; i < products; ++i) {
      CHECK(backend->Linear({.in = in.get(), .rows = rows, .weight = weight.get(), .out = out.get()}).ok());
    }
  };
  const auto run_peak = [&] { pool.ParallelFor(pool.threads(), [&](int64_t, int) { peak.run(loops); }); };
  run();
  std::vector<double> ours, best, share;
  for (int repeat = 0; repeat < flags.repeats; ++repeat) {
    const double before = SecondsOf(run_peak), product = SecondsOf(run), after = SecondsOf(run_peak);
    best.push_back(static_cast<double>(pool.threads() * loops * peak.operations) / std::min(before, after) * 1e-9);
    ours.push_back(static_cast<double>(products) * operations / product * 1e-9);
    share.push_back(ours.back() / best.back());
  }
  std::printf("| %s | %s | %ld x %ld | %ld | %.0f | %.0f | %.2f |\n", NameOf(c.format), NameOf(arithmetic),
              shape.inputs, shape.outputs, rows, Median(ours), Median(best), Median(share));
  std::fflush(stdout);
}

}  // namespace
}  // namespace swiftcache

int main(int argc, char** argv) {
  using namespace swiftcache;
  Flags flags;
  CLI::App app("Matrix products beside the processor's multiply-add instructions", "swiftcache-gemm-bench");
  app.add_option("--threads", flags.threads, "of the products and of the loops beside them")->check(CLI::Range(1, 256));
  app.add_option("--isa", flags.isa, "the highest instruction set, as the engine's --isa names it")
      ->check([](const std::string& name) { return IsaOfName(name) ? "" : name + ", wanted " + kWantedIsa; });
  app.add_option("--rows", flags.rows, "of the products, with commas")->delimiter(',')->check(CLI::PositiveNumber);
  app.add_option("--repeats", flags.repeats, "of each measurement; the median counts")->check(CLI::Range(1, 1000));
  std::vector<std::string> formats;
  for (const Case& c : kCases) formats.push_back(NameOf(c.format));
  app.add_option("--weights", flags.weights, "these formats alone, with commas")
      ->delimiter(',')
      ->check(CLI::IsMember(formats));
  CLI11_PARSE(app, argc, argv);
  const Isa isa = BestIsa(*IsaOfName(flags.isa));
  if (isa == Isa::kBaseline) {
    std::fprintf(stderr, "swiftcache-gemm-bench: neither --isa nor the machine may have less than avx2\n");
    return 2;
  }
  ThreadPool pool(flags.threads);
  std::printf("%s, %d threads\n\n", IsaName(isa), flags.threads);
  std::printf(
      "| weights | arithmetic | inputs x outputs | rows | GOP/s | peak | share |\n|---|---|---|---|---|---|---|\n");
  for (const Case& c : kCases) {
    const WeightBlock& block = BlockOf(c.format);
    if (!flags.weights.empty() && std::count(flags.weights.begin(), flags.weights.end(), block.name) == 0) continue;
    for (const Shape& shape : kShapes) {
      if (shape.inputs % block.elements != 0) continue;
      for (const int64_t rows : flags.rows) Measure(flags, c, shape, rows, isa, pool);
    }
  }
}
