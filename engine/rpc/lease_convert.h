// SPDX-License-Identifier: Apache-2.0
// Leases between wire and plain structs.
#pragma once

#include "engine/lease/lease.h"
#include "swiftcache/v1/broker.pb.h"

namespace swiftcache::engine::rpc {

/// Fields are taken as they are: the lease halves check what they rely on.
lease::Lease FromProto(const v1::Lease& proto);
v1::Lease ToProto(const lease::Lease& lease);

}  // namespace swiftcache::engine::rpc
