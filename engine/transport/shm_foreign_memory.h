// SPDX-License-Identifier: Apache-2.0
// Maps memory that another process sent, after making sure that it cannot be pulled away again.
//
//   RETURN_IF_ERROR(MapForeignMemory(fd, offset, bytes, reserved.base()));
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"

namespace swiftcache::engine::transport {

/// Maps [offset, offset + bytes) of `fd` read-only over the reserved addresses at `at`. The memory must be a memfd that
/// is sealed against shrinking and holes and has all its pages, so that whatever its owner does, no read of ours can
/// raise SIGBUS or be charged to our memory limit.
/// Errors: INVALID_ARGUMENT: it is something else, or smaller; RESOURCE_EXHAUSTED: the kernel refuses the mapping.
/// REQUIRES: offset and bytes are multiples of the page, offset >= 0, bytes > 0, and their sum does not wrap.
absl::Status MapForeignMemory(int fd, int64_t offset, int64_t bytes, std::byte* at);

}  // namespace swiftcache::engine::transport
