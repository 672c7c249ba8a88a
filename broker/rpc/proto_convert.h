// SPDX-License-Identifier: Apache-2.0
// The broker's plain structs from and to protobuf. Nothing is checked here: Membership and Ledger do that.
//
//   EngineInfo info = FromProto(request.engine());
#pragma once

#include <string>
#include <vector>

#include "broker/ledger/ledger.h"
#include "broker/loop/watcher.h"
#include "broker/membership/engine_status.h"
#include "swiftcache/v1/broker.pb.h"

namespace swiftcache::broker::rpc {

membership::EngineInfo FromProto(const v1::EngineInfo& proto);
membership::LoadReport FromProto(const v1::EngineLoad& proto);
v1::EngineStatus ToProto(const membership::EngineStatus& status);
/// One message, or the parts of a snapshot, without versions. `instance_id`: of the engine that watches, or "": then
/// capabilities are left out, and limits that were lifted.
std::vector<v1::WatchResponse> ToProto(const loop::WatchEvent& event, const std::string& instance_id);

/// The epoch is set if the lease's state says that the donor has accepted it.
ledger::Lease FromProto(const v1::Lease& proto);
v1::Lease ToProto(const ledger::Lease& lease);
v1::LeaseLimit ToProto(const ledger::LeaseLimit& limit);
ledger::LeaseLimit FromProto(const v1::LeaseLimit& proto);

}  // namespace swiftcache::broker::rpc
