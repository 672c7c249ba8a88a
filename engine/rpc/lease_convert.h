// SPDX-License-Identifier: Apache-2.0
// Leases from protobuf to plain structs and back.
//
//   lease::Lease lease = FromProto(response.lease());
#pragma once

#include <string>

#include "engine/lease/account.h"
#include "engine/lease/lease.h"
#include "swiftcache/v1/broker.pb.h"

namespace swiftcache::engine::rpc {

/// Fields are copied unchecked: lease::Donor and lease::Borrower check what they rely on.
lease::Lease FromProto(const v1::Lease& proto);
v1::Lease ToProto(const lease::Lease& lease);
v1::LeaseAccount ToProto(const std::string& borrower_model, const lease::Account& account);

}  // namespace swiftcache::engine::rpc
