// SPDX-License-Identifier: Apache-2.0
// What every backend wants of a model's attention.
//
//   RETURN_IF_ERROR(CheckShapes(options.attention, options.kv, options.inverse_frequencies.size()));
#pragma once

#include <cstddef>

#include "absl/status/status.h"
#include "engine/backend/backend.h"
#include "engine/backend/kv_layout.h"

namespace swiftcache::engine::backend {

/// Errors: INVALID_ARGUMENT, where query heads, the KV layout or the number of rope frequencies do not fit the heads.
absl::Status CheckShapes(const AttentionShape& shape, const KvLayout& kv, size_t num_frequencies);

}  // namespace swiftcache::engine::backend
