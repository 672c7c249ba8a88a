// SPDX-License-Identifier: Apache-2.0
// CudaBackend, the part that chooses tokens.
#include <glog/logging.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "engine/backend/cuda/cuda_backend.h"
#include "engine/sample/random.h"

namespace swiftcache::engine::backend::cuda {
namespace {

constexpr double kLog2E = 1.4426950408889634;

// What the host says of a row; where its penalised logits and its alternatives lie comes later.
TokenChoice ChoiceOf(const SampleRow& row) {
  const sample::SamplingParams& p = row.params;
  TokenChoice choice;
  choice.logits_row = row.logits_row;
  choice.num_seen = static_cast<int64_t>(row.seen.size());
  choice.repetition_penalty = p.repetition_penalty;
  choice.presence_penalty = p.presence_penalty;
  choice.frequency_penalty = p.frequency_penalty;
  choice.drawn = p.temperature > 0;
  choice.temperature = p.temperature;
  choice.top_k = p.top_k;
  choice.top_p = p.top_p;
  choice.log_min_p = std::log(static_cast<double>(p.min_p));
  choice.logprobs = p.logprobs.has_value();
  choice.num_top = p.logprobs.value_or(0);
  if (!choice.drawn) return choice;
  choice.bits = static_cast<float>(std::min<double>(kLog2E / p.temperature, std::numeric_limits<float>::max()));
  choice.uniform = sample::UniformAt(row.draw);
  return choice;
}

Sampled ResultOf(const ChosenToken& chosen, const TokenChoice& choice, const int32_t* top_ids, const float* top_logits,
                 int64_t vocab, int64_t position) {
  if (chosen.failed != 0) {
    return absl::InternalError(absl::StrCat("all ", vocab, " logits at position ", position,
                                            " are NaN or -inf; want at least one number: the model's weights are "
                                            "broken"));
  }
  sample::SampledToken token;
  token.token_id = chosen.id;
  if (!choice.logprobs) return token;
  const double norm = chosen.max + std::log(chosen.exps);
  token.logprob = static_cast<float>(chosen.logit - norm);
  for (int32_t i = choice.first_top; i < choice.first_top + choice.num_top; ++i) {
    if (!(top_logits[i] > -std::numeric_limits<float>::infinity())) break;  // NaN or impossible, as all behind it
    token.top.emplace_back(top_ids[i], static_cast<float>(top_logits[i] - norm));
  }
  return token;
}

}  // namespace

absl::Status CudaBackend::ReserveSampling(int64_t rows, int64_t vocab) {
  RETURN_IF_ERROR(EnsureDevice(penalised_, rows * vocab * int64_t{sizeof(float)}));
  RETURN_IF_ERROR(EnsureDevice(chosen_, rows * int64_t{sizeof(int32_t)}));
  const int64_t most_top = std::min<int64_t>(sample::SamplingParams::kMostLogprobs, vocab);
  for (StepState& state : steps_) {
    RETURN_IF_ERROR(EnsurePinned(state.chosen, rows * int64_t{sizeof(ChosenToken)}));
    RETURN_IF_ERROR(EnsurePinned(state.top, rows * most_top * int64_t{sizeof(int32_t) + sizeof(float)}));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<TokenChoice>> CudaBackend::ChoicesOf(std::span<const SampleRow> rows, int64_t vocab) {
  std::vector<TokenChoice> choices;
  std::vector<SeenLogit> seen;
  int64_t penalised = 0;
  int32_t alternatives = 0;
  for (const SampleRow& row : rows) {
    TokenChoice choice = ChoiceOf(row);
    choice.num_top = std::min<int32_t>(choice.num_top, static_cast<int32_t>(vocab));
    choice.first_top = alternatives;
    alternatives += choice.num_top;
    penalised += choice.num_seen > 0 ? 1 : 0;
    for (const sample::SeenToken& token : row.seen) seen.push_back({token.id, token.occurrences});
    choices.push_back(choice);
  }
  RETURN_IF_ERROR(EnsureDevice(penalised_, penalised * vocab * int64_t{sizeof(float)}));
  ASSIGN_OR_RETURN(const SeenLogit* device_seen, step().uploads.Put(std::span<const SeenLogit>(seen)));
  float* copy = penalised_.as<float>();
  for (TokenChoice& choice : choices) {
    if (choice.num_seen == 0) continue;
    choice.seen = std::exchange(device_seen, device_seen + choice.num_seen);
    choice.penalised = std::exchange(copy, copy + vocab);
  }
  return choices;
}

absl::Status CudaBackend::Sample(const Buffer& logits, std::span<const SampleRow> rows, std::span<Sampled> out) {
  CHECK_EQ(rows.size(), out.size());
  if (rows.empty()) return absl::OkStatus();
  CHECK(!std::exchange(sampled_, true)) << "a step's results have room for one Sample";
  const DeviceBuffer& from = AsDevice(logits);
  for (const SampleRow& row : rows) CHECK(row.logits_row >= 0 && row.logits_row < from.rows());
  ASSIGN_OR_RETURN(std::vector<TokenChoice> choices, ChoicesOf(rows, from.cols()));
  const int64_t alternatives = choices.back().first_top + choices.back().num_top;
  const auto count = static_cast<int64_t>(rows.size());
  RETURN_IF_ERROR(EnsurePinned(step().chosen, count * int64_t{sizeof(ChosenToken)}));
  RETURN_IF_ERROR(EnsurePinned(step().top, alternatives * int64_t{sizeof(int32_t) + sizeof(float)}));
  RETURN_IF_ERROR(EnsureDevice(chosen_, count * int64_t{sizeof(int32_t)}));
  auto* const top_ids = step().top.as<int32_t>();
  auto* const top_logits = reinterpret_cast<float*>(top_ids + alternatives);
  const auto* const results = step().chosen.as<ChosenToken>();
  ASSIGN_OR_RETURN(const TokenChoice* device_choices, step().uploads.Put(std::span<const TokenChoice>(choices)));
  RETURN_IF_ERROR(step().uploads.Send(stream_));
  RETURN_IF_ERROR(queue_.Add(ChooseOp{.logits = from.data(),
                                      .vocab = from.cols(),
                                      .choices = device_choices,
                                      .rows = count,
                                      .results = step().chosen.as<ChosenToken>(),
                                      .top_ids = top_ids,
                                      .top_logits = top_logits,
                                      .chosen = chosen_.as<int32_t>()}));
  std::vector<int64_t> positions;
  for (const SampleRow& row : rows) positions.push_back(row.draw.position);
  fences_.WhenDone([=, choices = std::move(choices), positions = std::move(positions), vocab = from.cols()] {
    for (size_t i = 0; i < out.size(); ++i) {
      out[i] = ResultOf(results[i], choices[i], top_ids, top_logits, vocab, positions[i]);
    }
  });
  return absl::OkStatus();
}

}  // namespace swiftcache::engine::backend::cuda
