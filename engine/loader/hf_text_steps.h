// SPDX-License-Identifier: Apache-2.0
// The steps before and after the BPE model in a tokenizer.json: normalizer, pre-tokeniser, post-processor.
//
//   RETURN_IF_ERROR(ReadTextSteps(root, spec));
//   RETURN_IF_ERROR(ReadPostProcessor(root, spec));
#pragma once

#include "absl/status/status.h"
#include "engine/loader/json_document.h"
#include "engine/loader/model_card.h"

namespace swiftcache::engine::loader {

/// Sets kind, normalizer, pre_tokenizer and the white-space fields.
/// REQUIRES: spec.byte_fallback is set. Errors: UNIMPLEMENTED names the part that is not supported.
absl::Status ReadTextSteps(const JsonObject& root, TokenizerSpec& spec);

/// Sets add_bos and bos_id, add_eos and eos_id from a TemplateProcessing. REQUIRES: spec.tokens is set.
absl::Status ReadPostProcessor(const JsonObject& root, TokenizerSpec& spec);

}  // namespace swiftcache::engine::loader
