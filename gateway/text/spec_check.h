// SPDX-License-Identifier: Apache-2.0
// Checks that a tokenizer spec, which comes over the network, is consistent.
//
//   RETURN_IF_ERROR(CheckSpec(spec));
#pragma once

#include "absl/status/status.h"
#include "gateway/text/tokenizer_spec.h"

namespace swiftcache::gateway::text {

/// Lengths agree, ids lie in the vocabulary, scores are finite, BOS and EOS exist where they are to be added.
/// Errors: INVALID_ARGUMENT names the field, the value found and the value wanted.
absl::Status CheckSpec(const TokenizerSpec& spec);

}  // namespace swiftcache::gateway::text
