// SPDX-License-Identifier: Apache-2.0
// Which engines can open each other's leases: the broker pairs those of one node id.
//
//   std::string id = NodeId(flags.shm_dir, transport->protocol());   // "3f0c...:2049:131:shm.2:1000"
#pragma once

#include <cstdint>
#include <istream>
#include <string>
#include <string_view>

namespace swiftcache::services {

/// The same for engines that run on one kernel and as one user, use the same folder, even if they name it by different
/// paths, and speak one protocol. A name (common/base/name.h), where `protocol` is one of at most 32 characters.
/// Thread-safety: safe. Errors: none.
std::string NodeId(const std::string& shm_dir, std::string_view protocol);

/// What a user is called outside the user namespace that has this /proc/self/uid_map: in a container root may be another.
/// `uid` itself where the map does not tell.
int64_t OuterUser(std::istream& uid_map, int64_t uid);

}  // namespace swiftcache::services
