// SPDX-License-Identifier: Apache-2.0
// Where channels' sockets lie.
//
//   std::string path = ShmSocketPath(options.shm_dir, "chat");       // <shm_dir>/chat.sock
#pragma once

#include <sys/socket.h>
#include <sys/un.h>

#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace swiftcache::engine::transport {

/// What --shm_dir is where nobody says: `swiftcache` in the user's runtime folder, or `swiftcache-<uid>` in /tmp where
/// `xdg_runtime_dir` (the environment's XDG_RUNTIME_DIR) is null or empty.
std::string DefaultShmDir(const char* xdg_runtime_dir);

/// The socket of the engine `name`; '/' and '%' in it are written %2F and %25.
std::string ShmSocketPath(std::string_view dir, std::string_view name);

/// INVALID_ARGUMENT: longer than an address can be, or empty.
absl::StatusOr<sockaddr_un> ShmAddress(const std::string& path);

}  // namespace swiftcache::engine::transport
