// SPDX-License-Identifier: Apache-2.0
// The two ways to write down where something lies on a GPU: the driver's number, and the DeviceAddress of all above it.
//
//   const DeviceAddress base = ToDeviceAddress(number);
//   driver.Copy(stream, {{.to = ToNumber(slot), .from = ToNumber(base) + offset, .bytes = bytes}});
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/backend/address_space.h"
#include "engine/backend/device_address.h"

namespace swiftcache::engine::backend::cuda {

/// The pointer between them is never followed.
inline DeviceAddress ToDeviceAddress(uint64_t number) {
  return AddressSpace().Of(reinterpret_cast<const std::byte*>(number));
}
inline uint64_t ToNumber(DeviceAddress address) { return AddressSpace().Number(address); }

}  // namespace swiftcache::engine::backend::cuda
