// SPDX-License-Identifier: Apache-2.0
// Where channels' sockets lie.
//
//   std::string path = ShmSocketPath(options.shm_dir, "chat");       // <shm_dir>/chat.sock
//   std::string peer = ShmPeerPath(path, "/elsewhere/code.sock");    // <shm_dir>/code.sock
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

/// The socket that a peer calls `theirs`, beside the own one: peers have the folder in common, not what they call it.
std::string ShmPeerPath(const std::string& own, const std::string& theirs);

/// INVALID_ARGUMENT: longer than an address can be, or empty.
absl::StatusOr<sockaddr_un> ShmAddress(const std::string& path);

}  // namespace swiftcache::engine::transport
