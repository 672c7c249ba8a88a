// SPDX-License-Identifier: Apache-2.0
// Unicode normalisation form C.
//
//   std::string composed = ToNfc("e\u0301");   // U+00E9
#pragma once

#include <string>
#include <string_view>

namespace swiftcache::gateway::text {

/// O(n log n) in the worst case, also for long runs of combining marks. REQUIRES: valid UTF-8.
std::string ToNfc(std::string_view text);

}  // namespace swiftcache::gateway::text
