// SPDX-License-Identifier: Apache-2.0
// The hyper-parameters in a Hugging Face config.json, as transformers 4 and 5 write it.
//
//   ASSIGN_OR_RETURN(ModelConfig config, ParseHfConfig(text, "model/config.json"));
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/loader/model_config.h"

namespace swiftcache::engine::loader {

/// Checked. Errors: INVALID_ARGUMENT names file, key, found and wanted; UNIMPLEMENTED names what is not supported.
absl::StatusOr<ModelConfig> ParseHfConfig(std::string_view text, const std::string& file);

/// Adds the end-of-sequence ids of a generation_config.json.
absl::Status AddGenerationConfig(std::string_view text, const std::string& file, ModelConfig& config);

}  // namespace swiftcache::engine::loader
