// SPDX-License-Identifier: Apache-2.0
// SHA-256, in the form in which hashes go over the wire and into logs.
//
//   if (Sha256Hex(bytes) != hash) return absl::DataLossError(...);
#pragma once

#include <string>
#include <string_view>

namespace swiftcache {

/// 64 lower-case hex digits.
std::string Sha256Hex(std::string_view bytes);

}  // namespace swiftcache
