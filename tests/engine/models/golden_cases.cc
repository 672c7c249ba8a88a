// SPDX-License-Identifier: Apache-2.0
#include "tests/engine/models/golden_cases.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

namespace swiftcache::engine::models {
namespace {

std::vector<nlohmann::json> ReadLines(const std::string& path) {
  std::ifstream file(path);
  EXPECT_TRUE(file.is_open()) << path;
  std::vector<nlohmann::json> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(nlohmann::json::parse(line));
  return lines;
}

template <typename T>
std::vector<T> Elements(const std::string& bytes, int64_t begin, int64_t end) {
  std::vector<T> out((end - begin) / sizeof(T));
  std::memcpy(out.data(), bytes.data() + begin, end - begin);
  return out;
}

}  // namespace

std::vector<GreedyCase> ReadGreedyCases(const std::string& path) {
  std::vector<GreedyCase> cases;
  for (const nlohmann::json& line : ReadLines(path)) {
    cases.push_back({line.at("name"), line.at("n_prompt"), line.at("ids"), line.at("tokens"), line.at("top2_margin")});
    EXPECT_EQ(cases.back().n_prompt, static_cast<int64_t>(cases.back().ids.size()));
    EXPECT_EQ(cases.back().tokens.size(), cases.back().top2_margin.size());
  }
  return cases;
}

std::vector<LogprobCase> ReadLogprobCases(const std::string& path) {
  std::vector<LogprobCase> cases;
  for (const nlohmann::json& line : ReadLines(path)) cases.push_back({line.at("ids"), line.at("mean_nll")});
  return cases;
}

GoldenTensors ReadGoldenTensors(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.is_open()) << path;
  const std::string bytes{std::istreambuf_iterator<char>(file), {}};
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, bytes.data(), sizeof(header_bytes));
  const auto header = nlohmann::json::parse(bytes.substr(8, header_bytes));
  GoldenTensors out;
  for (const auto& [name, tensor] : header.items()) {
    if (name == "__metadata__") continue;
    const int64_t begin = 8 + header_bytes + tensor["data_offsets"][0].get<int64_t>();
    const int64_t end = 8 + header_bytes + tensor["data_offsets"][1].get<int64_t>();
    if (tensor["dtype"] == "I32") {
      out.ids[name] = Elements<int32_t>(bytes, begin, end);
    } else {
      out.values[name] = Elements<float>(bytes, begin, end);
    }
  }
  return out;
}

void CompareGreedy(SequenceRunner& runner, const GreedyCase& golden, const Precision& precision, Comparison& result) {
  std::vector<int32_t> all = golden.ids;
  all.insert(all.end(), golden.tokens.begin(), golden.tokens.end() - 1);
  const std::vector<float> logits = runner.Logits(all, golden.n_prompt - 1);
  const int64_t vocab = logits.size() / golden.tokens.size();
  for (size_t i = 0; i < golden.tokens.size(); ++i) {
    if (golden.top2_margin[i] < precision.margin_limit) continue;
    const auto row = logits.begin() + i * vocab;
    const auto best = std::max_element(row, row + vocab) - row;
    ++result.steps;
    if (best == golden.tokens[i]) continue;
    ++result.differences;
    ADD_FAILURE() << precision.name << " " << golden.name << " step " << i << ": " << best << ", wanted "
                  << golden.tokens[i] << " (margin " << golden.top2_margin[i] << ")";
  }
}

void CompareLogits(SequenceRunner& runner, const GoldenTensors& golden, Comparison& result) {
  for (const auto& [name, ids] : golden.ids) {
    const std::vector<float>& wanted = golden.values.at("logits_" + name.substr(std::strlen("ids_")));
    const std::vector<float> found = runner.Logits(ids, ids.size() - 1);
    ASSERT_EQ(found.size(), wanted.size());
    for (size_t i = 0; i < wanted.size(); ++i, ++result.logits) {
      result.largest = std::max<double>(result.largest, std::abs(found[i] - wanted[i]));
      ASSERT_FALSE(std::isnan(found[i]));
    }
  }
}

double MeanNll(SequenceRunner& runner, const LogprobCase& golden) {
  const int64_t n = golden.ids.size();
  const std::vector<float> logits = runner.Logits(golden.ids, 0);
  const int64_t vocab = logits.size() / n;
  double sum = 0;
  for (int64_t i = 0; i + 1 < n; ++i) {
    const auto row = logits.begin() + i * vocab;
    const double max = *std::max_element(row, row + vocab);
    double total = 0;
    for (int64_t v = 0; v < vocab; ++v) total += std::exp(row[v] - max);
    sum -= row[golden.ids[i + 1]] - max - std::log(total);
  }
  return sum / (n - 1);
}

}  // namespace swiftcache::engine::models
