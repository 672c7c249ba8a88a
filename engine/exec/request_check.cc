// SPDX-License-Identifier: Apache-2.0
#include "engine/exec/request_check.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/base/status_macros.h"
#include "common/base/units.h"

namespace swiftcache::engine::exec {
namespace {

constexpr int64_t kMaxBlockTokens = 4096;
constexpr int64_t kMaxContinuations = 128;

absl::Status CheckRange(const char* name, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(name, " is ", value, "; want ", low, " to ", high));
}

absl::Status CheckIds(const char* field, const std::vector<int32_t>& ids, int64_t vocab_size) {
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] >= 0 && ids[i] < vocab_size) continue;
    return absl::InvalidArgumentError(absl::StrCat(field, "[", i, "] is ", ids[i], ", the vocabulary has ids 0 to ",
                                                   vocab_size - 1, "; tokenize with this model's tokenizer"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckOptions(const EngineOptions& options, const models::ModelGeometry& geometry) {
  constexpr int64_t kAny = std::numeric_limits<int32_t>::max();
  RETURN_IF_ERROR(CheckRange("--block_tokens", options.block_tokens, 1, kMaxBlockTokens));
  RETURN_IF_ERROR(CheckRange("--max_num_seqs", options.max_num_seqs, 1, kAny));
  RETURN_IF_ERROR(CheckRange("--max_num_batched_tokens", options.max_num_batched_tokens, 1, kAny));
  RETURN_IF_ERROR(CheckRange("--max_waiting_requests", options.max_waiting_requests, 1, kAny));
  if (options.target_itl < absl::ZeroDuration()) {
    return absl::InvalidArgumentError(absl::StrCat("--target_itl is ", absl::FormatDuration(options.target_itl),
                                                   "; want a time, or 0s for no target"));
  }
  if (options.max_tpot < absl::ZeroDuration()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--max_tpot is ", absl::FormatDuration(options.max_tpot), "; want a time, or 0s for no limit"));
  }
  if (!(options.gpu_memory_utilization > 0 && options.gpu_memory_utilization <= 1)) {
    return absl::InvalidArgumentError(absl::StrCat("--gpu_memory_utilization is ", options.gpu_memory_utilization,
                                                   "; want a number above 0, at most 1"));
  }
  if (options.max_model_len_tokens < 0 || options.max_model_len_tokens > geometry.max_context_tokens) {
    return absl::InvalidArgumentError(absl::StrCat("--max_model_len is ", options.max_model_len_tokens,
                                                   "; want 1 to the model's ", geometry.max_context_tokens,
                                                   " tokens, or 0 for all of them"));
  }
  return absl::OkStatus();
}

absl::Status CheckRequest(const Request& request, const RequestLimits& limits) {
  RETURN_IF_ERROR(request.sampling.Validate());
  if (request.n < 1 || request.n > kMaxContinuations) {
    return absl::InvalidArgumentError(
        absl::StrCat("n is ", request.n, ", wanted 1 to ", kMaxContinuations, "; send several requests for more"));
  }
  if (request.max_tokens && *request.max_tokens < 1) {
    return absl::InvalidArgumentError(absl::StrCat("max_tokens is ", *request.max_tokens,
                                                   ", wanted 1 or more; leave it out for what the model allows"));
  }
  if (request.prompt.empty()) {
    return absl::InvalidArgumentError("token_ids is empty, wanted at least one id; send a prompt");
  }
  if (const auto length = static_cast<int64_t>(request.prompt.size()); length >= limits.max_model_len_tokens) {
    return absl::OutOfRangeError(absl::StrCat("the prompt has ", length, " tokens; this engine holds ",
                                              limits.max_model_len_tokens,
                                              " for prompt and output together: shorten the prompt"));
  }
  RETURN_IF_ERROR(CheckIds("token_ids", request.prompt, limits.vocab_size));
  return CheckIds("stop_token_ids", request.stop_token_ids, limits.vocab_size);
}

int64_t MaxTotalTokens(const Request& request, const RequestLimits& limits) {
  if (!request.max_tokens) return limits.max_model_len_tokens;
  const auto wanted = CheckedAdd(static_cast<int64_t>(request.prompt.size()), *request.max_tokens);
  return std::min(wanted.value_or(limits.max_model_len_tokens), limits.max_model_len_tokens);
}

}  // namespace swiftcache::engine::exec
