// SPDX-License-Identifier: Apache-2.0
// The version that --version prints; CMake's project() is where it is set.
#pragma once

namespace swiftcache {
inline constexpr char kVersion[] = SWIFTCACHE_VERSION;
}  // namespace swiftcache
