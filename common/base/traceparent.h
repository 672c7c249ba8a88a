// SPDX-License-Identifier: Apache-2.0
// The W3C trace context's `traceparent`, taken from clients only in its exact form.
//
//   request.traceparent = ParseTraceparent(http.Header("traceparent"));
#pragma once

#include <string>
#include <string_view>

namespace swiftcache {

/// `header` where it is version-traceid-parentid-flags in 2, 32, 16 and 2 lower-case hexadecimal digits; "" where it is
/// anything else, which the standard wants treated as absent. What comes out may enter gRPC metadata and logs.
std::string ParseTraceparent(std::string_view header);

}  // namespace swiftcache
