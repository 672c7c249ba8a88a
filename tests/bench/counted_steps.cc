// SPDX-License-Identifier: Apache-2.0
// A fixed piece of work of a small model on one thread, for tests/bench/instructions.py to count its instructions.
//
//   swiftcache-counted-steps decode|prefill avx2|baseline MODEL
//
// prefill: 256 tokens in one step. decode: 16 steps of two sequences behind 200 tokens each. Exit code 77: this
// machine has no such instructions.
#include <cstdio>
#include <numeric>
#include <string>
#include <vector>

#include "engine/backend/cpu/isa.h"
#include "engine/loader/checkpoint.h"
#include "tests/bench/counted.h"
#include "tests/engine/models/sequence_runner.h"

namespace swiftcache {
namespace {

using engine::models::SequenceBlocks;
using engine::models::SequenceRunner;

constexpr int kNotHere = 77, kWrongUse = 2;
constexpr int64_t kPrompt = 256, kSequences = 2, kContext = 200, kSteps = 16;

std::vector<int32_t> Ids(int64_t count, int64_t vocab_size) {
  std::vector<int32_t> ids(count);
  for (int64_t i = 0; i < count; ++i) ids[i] = static_cast<int32_t>(i * 7919 % vocab_size);
  return ids;
}

void Prefill(SequenceRunner& runner, int64_t vocab_size) {
  const SequenceBlocks blocks(runner.kv(), kPrompt);
  const std::vector<int32_t> ids = Ids(kPrompt, vocab_size);
  swiftcache_counted([&] { runner.Step(ids, {{kPrompt, 0, blocks.addresses()}}, {kPrompt - 1}); });
}

void Decode(SequenceRunner& runner, int64_t vocab_size) {
  std::vector<SequenceBlocks> blocks;
  for (int64_t s = 0; s < kSequences; ++s) {
    blocks.emplace_back(runner.kv(), kContext + kSteps);
    runner.Step(Ids(kContext, vocab_size), {{kContext, 0, blocks.back().addresses()}}, {});
  }
  const std::vector<int32_t> ids = Ids(kSequences, vocab_size);
  std::vector<int32_t> rows(kSequences);
  std::iota(rows.begin(), rows.end(), 0);
  swiftcache_counted([&] {
    for (int64_t step = 0; step < kSteps; ++step) {
      std::vector<engine::backend::StepSequence> sequences;
      for (const SequenceBlocks& of : blocks) sequences.push_back({1, kContext + step, of.addresses()});
      runner.Step(ids, sequences, rows);
    }
  });
}

int Run(const std::string& work, const std::string& isa_name, const std::string& model) {
  const auto isa = engine::backend::cpu::IsaOfName(isa_name);
  const auto checkpoint = engine::loader::OpenCheckpoint(model);
  if (!isa || (work != "decode" && work != "prefill") || !checkpoint.ok()) {
    std::fprintf(stderr, "usage: swiftcache-counted-steps decode|prefill avx2|baseline MODEL: %s\n",
                 checkpoint.status().ToString().c_str());
    return kWrongUse;
  }
  if (engine::backend::cpu::BestIsa(*isa) != *isa) return kNotHere;
  SequenceRunner runner(checkpoint->config, *checkpoint->weights, {.max_isa = *isa, .chunk = kPrompt, .threads = 1});
  (work == "decode" ? Decode : Prefill)(runner, checkpoint->config.vocab_size);
  return 0;
}

}  // namespace
}  // namespace swiftcache

int main(int argc, char** argv) {
  if (argc != 4) return swiftcache::Run("", "", "");
  return swiftcache::Run(argv[1], argv[2], argv[3]);
}
