// SPDX-License-Identifier: Apache-2.0
// Attention alone, of one layer of a model's shape, with 32 and with 16 queries a warp: what decides which of them serves
// which steps, and what a step of prompts and decodes together costs by either.
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/fakes/synthetic_attention.h"
#include "tests/gpu/bench_tools.h"

namespace swiftcache::gpu_bench {

using namespace engine::backend::cuda;  // NOLINT: a benchmark of that room
using engine::backend::AttentionShape;
using engine::backend::StepSequence;

// FLOP: of what each row sees.
void MeasureAttention(const AttentionShape& shape, Driver& driver, Kernels& kernels, const Bounds& bounds, Rows& rows) {
  const auto measure = [&](const std::string& what, const std::vector<StepSequence>& sequences) {
    double seen = 0;
    for (const StepSequence& s : sequences) {
      const auto n = static_cast<double>(s.num_rows), context = static_cast<double>(s.context_tokens);
      seen += n * (context + (n + 1) / 2);
    }
    const double flop = 4 * seen * static_cast<double>(shape.num_heads * shape.head_dim);
    SyntheticAttention attention(driver, shape, sequences);
    Stopwatch stopwatch(driver, attention.stream());
    const int64_t blocks = 2 * driver.info().multiprocessors;
    for (const int64_t queries : {kTallTile, kLowTile}) {
      const AttendOp op = attention.ByTilesOf(queries / attention.group(), blocks);
      const double seconds = stopwatch.Time([&] { Check(kernels.Attend(attention.stream(), op)); });
      rows.Add({.what = absl::StrCat("attention alone, ", op.strip_rows, " queries a warp: ", what),
                .figure = seconds * 1e3,
                .unit = "ms",
                .share = flop / seconds / bounds.flops,
                .of = "the bound of products"});
    }
  };
  for (const int64_t tokens : {256, 512, 2048, 8192}) {
    measure(absl::StrCat(tokens, " tokens"), {{.num_rows = tokens}});
  }
  measure("512 behind 8192", {{.num_rows = 512, .context_tokens = 8192}});
  std::vector<StepSequence> mixed(32, {.num_rows = 1, .context_tokens = 4096});
  mixed.push_back({.num_rows = 512, .context_tokens = 2048});
  measure("512 behind 2048, 32 decodes", mixed);
}

}  // namespace swiftcache::gpu_bench
