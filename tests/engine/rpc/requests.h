// SPDX-License-Identifier: Apache-2.0
// A request to an engine, for tests of its doors.
#pragma once

#include <string>

#include "swiftcache/v1/engine.pb.h"

namespace swiftcache::engine::rpc {

/// Of one token.
inline v1::EngineGenerateRequest PromptNamed(const std::string& id) {
  v1::EngineGenerateRequest request;
  request.set_request_id(id);
  request.add_token_ids(1);
  return request;
}

}  // namespace swiftcache::engine::rpc
