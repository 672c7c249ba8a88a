// SPDX-License-Identifier: Apache-2.0
// The broker's plain structs <-> protobuf. Nothing is checked here: Membership does.
//
//   EngineInfo info = FromProto(request.engine());
#pragma once

#include "broker/loop/watcher.h"
#include "broker/membership/engine_status.h"
#include "swiftcache/v1/broker.pb.h"

namespace swiftcache::broker::rpc {

membership::EngineInfo FromProto(const v1::EngineInfo& proto);
membership::EngineLoad FromProto(const v1::EngineLoad& proto);
v1::EngineStatus ToProto(const membership::EngineStatus& status);
v1::WatchResponse ToProto(const loop::WatchEvent& event);

}  // namespace swiftcache::broker::rpc
