// SPDX-License-Identifier: Apache-2.0
// Opens a model on disk: a GGUF file, or a Hugging Face folder (config.json, *.safetensors, tokenizer.json,
// tokenizer_config.json).
//
//   ASSIGN_OR_RETURN(Checkpoint model, OpenCheckpoint("/models/SmolLM2-135M-Instruct.Q4_1.gguf"));
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "engine/loader/model_card.h"
#include "engine/loader/model_config.h"
#include "engine/loader/weights.h"

namespace swiftcache::engine::loader {

struct Checkpoint {
  ModelConfig config;
  ModelCard card;
  std::unique_ptr<Weights> weights;
};

/// Maps the files and checks everything except the values of weights: takes milliseconds, and allocates little besides
/// the vocabulary.
/// Thread-safety: safe. Ownership: the result owns its mappings.
/// Errors: NOT_FOUND (no such path), INVALID_ARGUMENT (malformed; names file, offset or key, found and wanted),
/// UNIMPLEMENTED (a known format that is not supported; names what is).
absl::StatusOr<Checkpoint> OpenCheckpoint(const std::string& path);

}  // namespace swiftcache::engine::loader
