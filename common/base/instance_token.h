// SPDX-License-Identifier: Apache-2.0
// How an engine proves to the broker which instance it is. Instance ids are published; the token that one is made from
// is not, and goes with every call of its engine. So the broker needs to remember no token, and a restarted one knows
// its engines again.
//
//   const std::string token = RandomId() + RandomId();                    // the engine, once
//   RETURN_IF_ERROR(CheckToken(request.instance_id(), request.token()));  // the broker, at each call
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace swiftcache {

/// The first 32 hex digits of the token's SHA-256.
std::string InstanceIdOf(std::string_view token);

/// PERMISSION_DENIED: the instance has another token. Names the instance, not the token.
absl::Status CheckToken(std::string_view instance_id, std::string_view token);

}  // namespace swiftcache
