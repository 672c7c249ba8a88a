// SPDX-License-Identifier: Apache-2.0
// How long servers write to a client that takes nothing: stream_writer.h.
#pragma once

#include "absl/time/time.h"

namespace swiftcache {

/// Some clients tell by the half of a window of 64 KiB, about 650 tokens, that they have read: one that speaks an
/// answer as it reads it, at six tokens a second, says nothing for nearly as long.
inline constexpr absl::Duration kStallTimeout = absl::Minutes(2);

}  // namespace swiftcache
