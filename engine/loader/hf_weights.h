// SPDX-License-Identifier: Apache-2.0
// The weights of a Hugging Face folder: model.safetensors, or shards and model.safetensors.index.json.
//
//   ASSIGN_OR_RETURN(std::unique_ptr<Weights> weights, OpenHfWeights("/models/Qwen3-0.6B", config));
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "engine/loader/model_config.h"
#include "engine/loader/weights.h"

namespace swiftcache::engine::loader {

/// Every tensor that the architecture wants. Shards lie in the folder itself; a name that leads elsewhere is refused.
/// Errors: NOT_FOUND (no weights, no such shard), INVALID_ARGUMENT, UNIMPLEMENTED; names file, tensor, found and
/// wanted.
absl::StatusOr<std::unique_ptr<Weights>> OpenHfWeights(const std::string& folder, const ModelConfig& config);

}  // namespace swiftcache::engine::loader
