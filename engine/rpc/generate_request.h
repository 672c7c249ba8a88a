// SPDX-License-Identifier: Apache-2.0
// Checks a Generate request from the wire and turns it into a plain struct.
//
//   ASSIGN_OR_RETURN(exec::Request request, ToRequest(proto, {.model_name = "chat"}, new_seed));
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/rpc/stall_timeout.h"
#include "engine/exec/request.h"
#include "swiftcache/v1/engine.pb.h"

namespace swiftcache::engine::rpc {

struct WireLimits {
  std::string model_name = {}, model_card_hash = {};  // what is served; "": whatever is wanted
  int64_t max_request_id_bytes = 512;                 // 256 of a client's, and what makes it unique
  int64_t max_cache_salt_bytes = 1024;
  int64_t max_stop_token_ids = 1024;
  // Of memory, that clients leave unread: of a call of Generate, and of all generations of a GenerateMany. That is 40
  // seconds of 3,000 tokens a second with 20 log-probabilities each, and hours of others.
  int64_t max_unread_bytes = int64_t{16} << 20, max_unread_stream_bytes = int64_t{256} << 20;
  absl::Duration stall_timeout = kStallTimeout;
};

/// `random` gives the seed and the id of a request that has none.
/// UNAVAILABLE: another model is wanted. INVALID_ARGUMENT (a text or list that is too long) names field, value, limit and
/// remedy. All else is as it came: the engine checks it.
absl::StatusOr<exec::Request> ToRequest(const v1::EngineGenerateRequest& proto, const WireLimits& limits,
                                        const std::function<uint64_t()>& random);

v1::EngineGenerateResponse ToProto(const exec::TokenEvent& event);

/// Appends the tokens of `event` to a response of the same index that was not sent yet, or to a new one.
void Append(const exec::TokenEvent& event, v1::EngineGenerateResponse& response);

/// About how many bytes of memory Append takes for an event, and how many it took for all those in a response.
int64_t MemoryOf(const exec::TokenEvent& event);
int64_t MemoryOf(const v1::EngineGenerateResponse& response);

}  // namespace swiftcache::engine::rpc
