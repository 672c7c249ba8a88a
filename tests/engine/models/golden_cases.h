// SPDX-License-Identifier: Apache-2.0
// Reference results (tests/data/README.md) and how they are compared: teacher-forced, where the reference is clear.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tests/engine/models/sequence_runner.h"

namespace swiftcache::engine::models {

struct GreedyCase {
  std::string name;
  int64_t n_prompt = 0;
  std::vector<int32_t> ids;     // the prompt
  std::vector<int32_t> tokens;  // arg-max after it
  std::vector<double> top2_margin;
};

std::vector<GreedyCase> ReadGreedyCases(const std::string& path);

struct LogprobCase {
  std::vector<int32_t> ids;
  double mean_nll = 0;
};
std::vector<LogprobCase> ReadLogprobCases(const std::string& path);

/// Tensors of a safetensors file, flat. Ids are I32, the rest F32.
struct GoldenTensors {
  std::map<std::string, std::vector<int32_t>> ids;
  std::map<std::string, std::vector<float>> values;
};
GoldenTensors ReadGoldenTensors(const std::string& path);

struct Comparison {
  int64_t steps = 0;  // whose arg-max was compared
  int64_t differences = 0;
  int64_t logits = 0;  // single numbers compared
  double largest = 0;  // difference of a logit
};

/// One prefill of prompt and tokens; the arg-max at every step above the limit must be the reference's.
void CompareGreedy(SequenceRunner& runner, const GreedyCase& golden, const Precision& precision, Comparison& result);
/// logits_N after ids_N.
void CompareLogits(SequenceRunner& runner, const GoldenTensors& golden, Comparison& result);

double MeanNll(SequenceRunner& runner, const LogprobCase& golden);

}  // namespace swiftcache::engine::models
