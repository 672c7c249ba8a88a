// SPDX-License-Identifier: Apache-2.0
#include "services/ctl/sampling_flags.h"

#include <CLI/CLI.hpp>
#include <limits>

#include "services/ctl/complaint.h"

namespace swiftcache::services::ctl {
namespace {

constexpr double kMaxInt = std::numeric_limits<int32_t>::max();

}  // namespace

void ModelFlags::AddTo(CLI::App& command) {
  command.add_option("--model", model, "the model's name; may be left out where one model is served");
  command.add_option("--wait", wait_seconds, "seconds to wait until a gateway answers and serves the model, [0, 3600]")
      ->check(NumberIn(0, 3600))
      ->capture_default_str();
}

void SamplingFlags::AddTo(CLI::App& command, int32_t default_max_tokens) {
  max_tokens = default_max_tokens;
  command.add_option("--max_tokens", max_tokens, "the answer ends after so many tokens")
      ->check(NumberIn(1, kMaxInt))
      ->capture_default_str();
  command.add_option("--temperature", temperature, "[0, 2]; 0 is greedy; left out: 1")->check(NumberIn(0, 2));
  command.add_option("--top_p", top_p, "nucleus sampling, (0, 1]")->check(NumberIn(0, 1, /*open=*/true));
  command.add_option("--top_k", top_k, "the k likeliest tokens; 0: all")->check(NumberIn(-1, kMaxInt));
  command.add_option("--min_p", min_p, "least share of the likeliest token's probability, [0, 1]")
      ->check(NumberIn(0, 1));
  command.add_option("--seed", seed, "the same seed and request give the same tokens");
  command.add_option("--repetition_penalty", repetition_penalty, "(0, 10]")->check(NumberIn(0, 10, /*open=*/true));
  command.add_option("--presence_penalty", presence_penalty, "[-2, 2]")->check(NumberIn(-2, 2));
  command.add_option("--frequency_penalty", frequency_penalty, "[-2, 2]")->check(NumberIn(-2, 2));
  command.add_option("--stop", stop, "the answer ends before this text; may be given several times")
      ->allow_extra_args(false);
  command.add_flag("--ignore_eos", ignore_eos, "go on after the model's end-of-sequence token");
}

v1::Sampling SamplingFlags::ToProto() const {
  v1::Sampling out;
  out.set_max_tokens(max_tokens);
  if (temperature) out.set_temperature(*temperature);
  if (top_p) out.set_top_p(*top_p);
  if (top_k) out.set_top_k(*top_k);
  if (min_p) out.set_min_p(*min_p);
  if (seed) out.set_seed(*seed);
  if (repetition_penalty) out.set_repetition_penalty(*repetition_penalty);
  if (presence_penalty) out.set_presence_penalty(*presence_penalty);
  if (frequency_penalty) out.set_frequency_penalty(*frequency_penalty);
  for (const std::string& text : stop) out.add_stop(text);
  out.set_ignore_eos(ignore_eos);
  return out;
}

}  // namespace swiftcache::services::ctl
