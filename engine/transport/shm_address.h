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

/// What --shm_dir is where nobody says: `swiftcache-<uid>` in /tmp. Not in XDG_RUNTIME_DIR, which logind removes, sockets
/// and all, when the user's last session ends, and which an engine that cron or su starts does not have.
std::string DefaultShmDir();

/// The socket of the engine `name`; '/' and '%' in it are written %2F and %25.
std::string ShmSocketPath(std::string_view dir, std::string_view name);

/// INVALID_ARGUMENT: longer than an address can be, or empty.
absl::StatusOr<sockaddr_un> ShmAddress(const std::string& path);

}  // namespace swiftcache::engine::transport
