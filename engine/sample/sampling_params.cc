// SPDX-License-Identifier: Apache-2.0
#include "engine/sample/sampling_params.h"

#include <cmath>

#include "absl/strings/str_cat.h"

namespace swiftcache::engine::sample {
namespace {

absl::Status OutOfRange(const char* field, double value, const char* range) {
  return absl::InvalidArgumentError(absl::StrCat(field, " is ", value, "; want a number in ", range));
}

}  // namespace

// Every test is written so that NaN fails it.
absl::Status SamplingParams::Validate() const {
  if (!(temperature >= 0 && std::isfinite(temperature))) return OutOfRange("temperature", temperature, "[0, inf)");
  if (!(top_p > 0 && top_p <= 1)) return OutOfRange("top_p", top_p, "(0, 1]");
  if (top_k < -1) return OutOfRange("top_k", top_k, "[-1, inf), where 0 and -1 mean all");
  if (!(min_p >= 0 && min_p <= 1)) return OutOfRange("min_p", min_p, "[0, 1]");
  if (!(repetition_penalty > 0 && repetition_penalty <= 10)) {
    return OutOfRange("repetition_penalty", repetition_penalty, "(0, 10]");
  }
  if (!(presence_penalty >= -2 && presence_penalty <= 2)) {
    return OutOfRange("presence_penalty", presence_penalty, "[-2, 2]");
  }
  if (!(frequency_penalty >= -2 && frequency_penalty <= 2)) {
    return OutOfRange("frequency_penalty", frequency_penalty, "[-2, 2]");
  }
  if (logprobs && (*logprobs < 0 || *logprobs > kMostLogprobs)) return OutOfRange("logprobs", *logprobs, "[0, 20]");
  return absl::OkStatus();
}

}  // namespace swiftcache::engine::sample
