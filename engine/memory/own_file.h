// SPDX-License-Identifier: Apache-2.0
// A file by which this user's processes meet: one locks it, or maps it.
//
//   ASSIGN_OR_RETURN(UniqueFd file, OpenOwnFile("/run/swiftcache", "/run/swiftcache/cores-3"));
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "engine/memory/sealed_memory.h"

namespace swiftcache::engine::memory {

/// To be read and written; made where it is missing, and so is the folder that it lies in. NOT_FOUND: the folder was
/// removed meanwhile. INVALID_ARGUMENT: it cannot be made or opened, or is another user's; names it.
absl::StatusOr<UniqueFd> OpenOwnFile(const std::string& folder, const std::string& path);

}  // namespace swiftcache::engine::memory
