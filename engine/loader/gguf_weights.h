// SPDX-License-Identifier: Apache-2.0
// The weights of a GGUF file under Hugging Face's names and in Hugging Face's row order.
//
//   ASSIGN_OR_RETURN(auto tensors, ViewGgufTensors(gguf, config));
#pragma once

#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "engine/backend/weight_source.h"
#include "engine/loader/gguf_file.h"
#include "engine/loader/model_config.h"

namespace swiftcache::engine::loader {

/// Every tensor that the architecture wants. The sources borrow the bytes that `gguf` was parsed from.
/// Errors: INVALID_ARGUMENT (missing, or of another shape), UNIMPLEMENTED (a tensor of a layer that the architecture
/// has no place for); names the tensor, found and wanted.
absl::StatusOr<std::map<std::string, backend::WeightSource>> ViewGgufTensors(const GgufFile& gguf,
                                                                             const ModelConfig& config);

}  // namespace swiftcache::engine::loader
