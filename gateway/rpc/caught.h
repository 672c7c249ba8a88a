// SPDX-License-Identifier: Apache-2.0
// A call that throws ends with an error, and the process goes on.
//
//   absl::Status status = Caught([&] { return Answer(request, response); });
#pragma once

#include <exception>

#include "absl/status/status.h"
#include "common/log/log.h"

namespace swiftcache::gateway::rpc {

/// What `work` returns, a Status or a StatusOr; INTERNAL where it throws, since nobody else catches what is thrown on a
/// thread of SideThreads.
template <typename Work>
auto Caught(Work work) -> decltype(work()) {
  try {
    return work();
  } catch (const std::exception& error) {
    LOG(ERROR) << "a call threw: " << error.what();
    return absl::InternalError("internal error");
  }
}

}  // namespace swiftcache::gateway::rpc
