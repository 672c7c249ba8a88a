// SPDX-License-Identifier: Apache-2.0
// The hyper-parameters in a GGUF file's metadata (architectures llama, qwen2, qwen3).
//
//   ASSIGN_OR_RETURN(ModelConfig config, ReadGgufConfig(gguf));
#pragma once

#include "absl/status/statusor.h"
#include "engine/loader/gguf_file.h"
#include "engine/loader/model_config.h"

namespace swiftcache::engine::loader {

/// Checked. Errors: INVALID_ARGUMENT names file, key, found and wanted; UNIMPLEMENTED names what is not supported.
absl::StatusOr<ModelConfig> ReadGgufConfig(const GgufFile& gguf);

}  // namespace swiftcache::engine::loader
