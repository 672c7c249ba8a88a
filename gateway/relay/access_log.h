// SPDX-License-Identifier: Apache-2.0
// The one line that the log has of each request, when it ends. No text of prompts or answers is in it.
//
//   LogAccess({.request = request, .model = "m", .status = status, .total = now - arrived});
//   // request_id=r1 model=m door=grpc client=127.0.0.1:40112 code=OK engine=m-2 attempts=1 prompt_tokens=9
//   // cached_tokens=0 completion_tokens=8 text_bytes=31 ttft_ms=4.2 e2e_ms=61.3 request ended
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gateway/relay/relay.h"

namespace swiftcache::gateway::relay {

/// Thread-safety: a value. Ownership: borrows all.
struct Access {
  const GenerateRequest& request;
  std::string_view model;  // "": the request named none that is served
  const absl::Status& status;
  absl::Duration total;  // from its arrival to its end
  // Where an engine was asked:
  int attempts = 0;
  std::string_view engine = {};  // the last one
  int64_t prompt_tokens = 0, cached_tokens = 0, completion_tokens = 0;
  int64_t text_bytes = 0;  // sent to the client
  std::optional<absl::Duration> time_to_first_token = std::nullopt;
};

void LogAccess(const Access& access);

}  // namespace swiftcache::gateway::relay
