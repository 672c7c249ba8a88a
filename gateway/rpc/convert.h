// SPDX-License-Identifier: Apache-2.0
// Protobuf messages to plain structs and back. Checks only what a plain struct cannot express.
//
//   ASSIGN_OR_RETURN(relay::GenerateRequest plain, ToPlain(request));
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "gateway/fleet/cluster.h"
#include "gateway/fleet/engine_client.h"
#include "gateway/relay/relay.h"
#include "swiftcache/v1/broker.pb.h"
#include "swiftcache/v1/engine.pb.h"
#include "swiftcache/v1/generate.pb.h"

namespace swiftcache::gateway::rpc {

/// INVALID_ARGUMENT: none of prompt, token_ids, chat.
absl::StatusOr<relay::GenerateRequest> ToPlain(const v1::GenerateRequest& request);
relay::Chat ToPlain(const v1::Chat& chat);
/// Of what ToPlain copies.
relay::RequestSizes SizesOf(const v1::GenerateRequest& request);
relay::RequestSizes SizesOf(const v1::TokenizeRequest& request);
v1::GenerateResponse ToProto(const relay::GenerateEvent& event);

v1::EngineGenerateRequest ToProto(const fleet::EngineRequest& request);
fleet::EngineEvent ToPlain(const v1::EngineGenerateResponse& response);

fleet::EngineStatus ToPlain(const v1::EngineStatus& status);

}  // namespace swiftcache::gateway::rpc
