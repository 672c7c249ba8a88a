// SPDX-License-Identifier: Apache-2.0
// The logits of a model at every position of some sequences, as raw f32: what tests/bench/logit_error.py compares.
//
//   echo "1 523 17" > ids.txt    # a sequence a line
//   swiftcache-model-logits --model PATH --ids ids.txt --out logits.f32
//                           [--dtype auto|bf16|f32] [--kv bf16|f32|int8] [--activations auto|f32|bf16|int8]
//                           [--isa amx|avx512_bf16|avx512_vnni|avx512|avx_vnni|avx2|baseline]
//
// logits.f32: [positions of all sequences, one after the other][vocab]. Prints backend, KV's element and weights.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "engine/backend/cpu/isa.h"
#include "engine/loader/checkpoint.h"
#include "tests/bench/fail.h"
#include "tests/engine/models/sequence_runner.h"

namespace swiftcache {
namespace {

using engine::backend::KvDtype;
using engine::backend::cpu::Activations;
using engine::backend::cpu::Isa;
using engine::models::ComputeDtype;
using engine::models::SequenceRunner;

// The values that a flag may have; the first one is its default.
template <typename T>
T Choose(const std::map<std::string, std::string>& flags, const std::string& name,
         const std::vector<std::pair<std::string, T>>& choices) {
  const auto found = flags.find(name);
  if (found == flags.end()) return choices.front().second;
  for (const auto& [text, value] : choices) {
    if (text == found->second) return value;
  }
  Fail(name + " is " + found->second + ", wanted one of those that the source's head names");
}

std::map<std::string, std::string> Parse(int argc, char** argv) {
  std::map<std::string, std::string> flags;
  for (int i = 1; i + 1 < argc; i += 2) flags[argv[i]] = argv[i + 1];
  for (const char* name : {"--model", "--ids", "--out"}) {
    if (!flags.contains(name)) Fail(std::string(name) + " is missing");
  }
  return flags;
}

std::vector<std::pair<std::string, Isa>> IsaChoices() {
  std::vector<std::pair<std::string, Isa>> choices;
  for (const Isa isa : engine::backend::cpu::kAllIsas) choices.emplace_back(IsaName(isa), isa);
  std::reverse(choices.begin(), choices.end());
  return choices;
}

SequenceRunner::Options OptionsOf(const std::map<std::string, std::string>& flags) {
  return {.dtype = Choose<ComputeDtype>(
              flags, "--dtype",
              {{"auto", ComputeDtype::kAuto}, {"bf16", ComputeDtype::kBf16}, {"f32", ComputeDtype::kF32}}),
          .kv_dtype = Choose<KvDtype>(flags, "--kv",
                                      {{"bf16", KvDtype::kBf16}, {"f32", KvDtype::kF32}, {"int8", KvDtype::kInt8}}),
          .max_isa = Choose<Isa>(flags, "--isa", IsaChoices()),
          .activations = Choose<Activations>(flags, "--activations",
                                             {{"auto", Activations::kAuto},
                                              {"f32", Activations::kF32},
                                              {"bf16", Activations::kBf16},
                                              {"int8", Activations::kInt8}})};
}

std::vector<std::vector<int32_t>> ReadSequences(const std::string& path, int64_t vocab_size) {
  std::ifstream file(path);
  std::vector<std::vector<int32_t>> sequences;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::vector<int32_t> ids;
    for (int32_t id = 0; words >> id;) {
      if (id < 0 || id >= vocab_size) Fail("id " + std::to_string(id) + " is not in the vocabulary");
      ids.push_back(id);
    }
    if (!ids.empty()) sequences.push_back(ids);
  }
  if (sequences.empty()) Fail(path + ": no ids");
  return sequences;
}

int Run(const std::map<std::string, std::string>& flags) {
  const auto checkpoint = engine::loader::OpenCheckpoint(flags.at("--model"));
  if (!checkpoint.ok()) Fail(std::string(checkpoint.status().message()));
  const SequenceRunner::Options options = OptionsOf(flags);
  const auto sequences = ReadSequences(flags.at("--ids"), checkpoint->config.vocab_size);
  SequenceRunner runner(checkpoint->config, *checkpoint->weights, options);
  std::printf("%s, KV %s; %s\n", runner.decoder().backend().name().c_str(), NameOf(options.kv_dtype),
              Describe(runner.decoder().weights()).c_str());
  std::ofstream out(flags.at("--out"), std::ios::binary);
  for (const std::vector<int32_t>& ids : sequences) {
    const std::vector<float> logits = runner.Logits(ids, 0);
    out.write(reinterpret_cast<const char*>(logits.data()), logits.size() * sizeof(float));
  }
  out.close();
  if (!out) Fail(flags.at("--out") + ": not written");
  return 0;
}

}  // namespace
}  // namespace swiftcache

int main(int argc, char** argv) { return swiftcache::Run(swiftcache::Parse(argc, argv)); }
