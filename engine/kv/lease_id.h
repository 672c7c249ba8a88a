// SPDX-License-Identifier: Apache-2.0
// The names of a lease and of the generation of memory that it was granted for.
#pragma once

#include <cstdint>

#include "common/base/strong_id.h"

namespace swiftcache::engine::kv {

/// Given by the broker; unique over its restarts.
using LeaseId = StrongId<struct LeaseIdTag, int64_t>;

/// The generation of an extent at its grant: what is read under a lease is of value only while the extent's generation
/// word still says this.
using Epoch = StrongId<struct EpochTag, uint64_t>;

}  // namespace swiftcache::engine::kv
