// SPDX-License-Identifier: Apache-2.0
// What a request and an engine's options must look like before the loop ever sees them.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "engine/exec/engine_options.h"
#include "engine/exec/request.h"
#include "engine/models/model.h"

namespace swiftcache::engine::exec {

/// What one engine can serve. max_model_len_tokens is what the model, --max_model_len and the arena allow together.
struct RequestLimits {
  int64_t vocab_size = 0;
  int64_t max_model_len_tokens = 0;
};

/// INVALID_ARGUMENT names the flag, the value found, the range and the remedy.
absl::Status CheckOptions(const EngineOptions& options, const models::ModelGeometry& geometry);

/// INVALID_ARGUMENT (empty prompt, id outside the vocabulary, parameter out of range), OUT_OF_RANGE (no room for a
/// token). Fields are called as on the wire (proto EngineGenerateRequest): the door does not check them.
absl::Status CheckRequest(const Request& request, const RequestLimits& limits);

/// How long prompt and output of this request may become together. REQUIRES: CheckRequest was OK.
int64_t MaxTotalTokens(const Request& request, const RequestLimits& limits);

}  // namespace swiftcache::engine::exec
