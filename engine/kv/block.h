// SPDX-License-Identifier: Apache-2.0
// The name of a block in an arena, and the two kinds of hands that may hold it.
#pragma once

#include <cstdint>

#include "common/base/strong_id.h"

namespace swiftcache::engine::kv {

/// Index of a block in its arena, from 0.
using BlockId = StrongId<struct BlockIdTag, int32_t>;

/// A block held by a sequence is in use; one held by the cache alone is kept only until somebody needs the room.
enum class Holder { kSequence, kCache };

}  // namespace swiftcache::engine::kv
