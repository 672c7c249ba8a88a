// SPDX-License-Identifier: Apache-2.0
// The name of a block, and the kinds of hands that may hold it.
#pragma once

#include <cstdint>

#include "common/base/strong_id.h"

namespace swiftcache::engine::kv {

/// A logical block: what block tables and the prefix tree name. Where its bytes lie is its Place, which may change.
using BlockId = StrongId<struct BlockIdTag, int32_t>;

/// The use of a block's name from its allocation until it is free again; never the same twice in the life of a pool. What
/// was kept of the bytes of a committed block is good while its filling is the same, wherever it lies.
using Filling = StrongId<struct FillingTag, uint64_t>;

/// A block held by a sequence is in use; one held by the cache alone is kept only until somebody needs the room. What a
/// kLocalSequence holds stays in the own arena: it is not moved to a lease.
enum class Holder { kSequence, kLocalSequence, kCache };

}  // namespace swiftcache::engine::kv
