// SPDX-License-Identifier: Apache-2.0
// The one way between a device's addresses and pointers of this process. For engine/backend and engine/transport, which
// touch bytes; tests/check-structure.sh refuses it anywhere else.
//
//   const AddressSpace space;                          // of a CPU: an address is the pointer's number
//   DeviceAddress address = space.Of(arena.base());
//   std::memset(space.Host(address), 0, bytes);
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/backend/device_address.h"

namespace swiftcache::engine::backend {

/// Thread-safety: a value. Ownership: none. Errors: none; a pointer that Host returns is what Of was given, plus what
/// was added to the address since, and may be used as that pointer might. A null pointer has the address of nothing,
/// and the address of nothing gives a null pointer.
class AddressSpace {
 public:
  constexpr AddressSpace() = default;
  /// Addresses that are no pointers: each is a pointer's number with these bits turned, so that whoever takes one for
  /// the other crashes where bits above the machine's addresses are among them.
  explicit constexpr AddressSpace(uint64_t turned_bits) : turned_bits_(turned_bits) {}

  DeviceAddress Of(const std::byte* pointer) const {
    return pointer == nullptr ? DeviceAddress() : DeviceAddress(reinterpret_cast<uint64_t>(pointer) ^ turned_bits_);
  }
  std::byte* Host(DeviceAddress address) const { return reinterpret_cast<std::byte*>(Number(address)); }
  /// For arithmetic that leaves the object on its way to another address of it.
  uint64_t Number(DeviceAddress address) const { return address ? address.value_ ^ turned_bits_ : 0; }

 private:
  uint64_t turned_bits_ = 0;
};

}  // namespace swiftcache::engine::backend
