// SPDX-License-Identifier: Apache-2.0
// How large a model card may be. Both ends hold to it: an engine serves none that gateways would refuse, and a gateway
// parses none that would take gigabytes, since a token of two bytes on the wire becomes some hundred in memory.
//
//   RETURN_IF_ERROR(CheckCardSize(bytes));   // then ParseFromString
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "common/rpc/field_count.h"

namespace swiftcache {

/// Of a serialised ModelCard. The largest vocabularies that are known have a million tokens, which take some 20 MB with
/// their merges.
inline constexpr int64_t kMaxCardBytes = int64_t{128} << 20;
/// Two million tokens, rules and added tokens, and with them types, scores and the halves of merges: parsed, so many
/// take at most some 300 MB beside their texts.
inline constexpr FieldLimits kCardLimits{.fields = 1 << 21, .numbers = 1 << 23};

/// Thread-safety: safe. Errors: INVALID_ARGUMENT: more bytes, fields or numbers, or bytes that are no ModelCard.
absl::Status CheckCardSize(const std::string& bytes);

}  // namespace swiftcache
