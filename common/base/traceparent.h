// SPDX-License-Identifier: Apache-2.0
// The `traceparent` of the W3C trace context, accepted from clients only in its exact form.
//
//   request.traceparent = ParseTraceparent(http.Header("traceparent"));
#pragma once

#include <string>
#include <string_view>

namespace swiftcache {

/// `header` if it is version-traceid-parentid-flags with 2, 32, 16 and 2 lower-case hexadecimal digits; otherwise "",
/// since the standard says to ignore anything else. The result is safe in gRPC metadata and logs.
std::string ParseTraceparent(std::string_view header);

}  // namespace swiftcache
