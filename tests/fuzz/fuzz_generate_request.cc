// SPDX-License-Identifier: Apache-2.0
// Requests as an engine gets them: one that is taken has ids of the vocabulary alone and limits that are kept, or there is
// one clear error.
#include <cstdint>
#include <cstdlib>
#include <span>

#include "engine/exec/request_check.h"
#include "engine/rpc/generate_request.h"

namespace {

using swiftcache::engine::exec::CheckRequest;
using swiftcache::engine::exec::Request;
using swiftcache::engine::exec::RequestLimits;
using swiftcache::engine::rpc::ToRequest;
using swiftcache::engine::rpc::WireLimits;

void Require(bool condition) {
  if (!condition) std::abort();
}

void CheckIds(std::span<const int32_t> ids, int64_t vocab_size) {
  for (const int32_t id : ids) Require(id >= 0 && id < vocab_size);
}

constexpr RequestLimits kServed{.vocab_size = 1000, .max_model_len_tokens = 64};

void CheckTaken(const Request& request, const WireLimits& limits) {
  Require(!request.prompt.empty() && !request.request_id.empty() && request.sampling.Validate().ok());
  CheckIds(request.prompt, kServed.vocab_size);
  CheckIds(request.stop_token_ids, kServed.vocab_size);
  const int64_t total = MaxTotalTokens(request, kServed);
  Require(total > static_cast<int64_t>(request.prompt.size()) && total <= kServed.max_model_len_tokens);
  Require(request.n >= 1 && request.n <= 128 && (!request.max_tokens || *request.max_tokens >= 1));
  Require(static_cast<int64_t>(request.request_id.size()) <= limits.max_request_id_bytes &&
          static_cast<int64_t>(request.cache_salt.size()) <= limits.max_cache_salt_bytes &&
          static_cast<int64_t>(request.stop_token_ids.size()) <= limits.max_stop_token_ids);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  swiftcache::v1::EngineGenerateRequest proto;
  if (!proto.ParseFromArray(data, static_cast<int>(size))) return 0;
  const WireLimits limits = {
      .model_name = "chat", .max_request_id_bytes = 32, .max_cache_salt_bytes = 16, .max_stop_token_ids = 4};
  const auto request = ToRequest(proto, limits, [] { return uint64_t{7}; });
  const absl::Status status = request.ok() ? CheckRequest(*request, kServed) : request.status();
  if (status.ok()) {
    CheckTaken(*request, limits);
  } else {
    Require(!status.message().empty());
    Require(status.code() == absl::StatusCode::kInvalidArgument ||
            (status.code() == absl::StatusCode::kOutOfRange && request->prompt.size() >= 64) ||
            (status.code() == absl::StatusCode::kUnavailable && proto.model_name() != limits.model_name));
  }
  return 0;
}
