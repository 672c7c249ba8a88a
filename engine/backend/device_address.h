// SPDX-License-Identifier: Apache-2.0
// Where something lies in a device's memory: a number to add to and to compare, and nothing else.
//
//   DeviceAddress block = arena + index * block_bytes;
//   std::byte* bytes = space.Host(block);        // engine/backend and engine/transport alone (address_space.h)
#pragma once

#include <compare>
#include <cstdint>

namespace swiftcache::engine::backend {

/// It is no pointer, since the host may not be able to read what lies there. Thread-safety: a value. Ownership: none.
/// Errors: none; the sum of an address and an offset is a number, whatever lies there. Units: bytes.
class DeviceAddress {
 public:
  constexpr DeviceAddress() = default;  // of nothing

  friend constexpr DeviceAddress operator+(DeviceAddress address, int64_t bytes) {
    return DeviceAddress(address.value_ + static_cast<uint64_t>(bytes));
  }
  friend constexpr int64_t operator-(DeviceAddress a, DeviceAddress b) {
    return static_cast<int64_t>(a.value_ - b.value_);
  }
  constexpr auto operator<=>(const DeviceAddress&) const = default;
  explicit constexpr operator bool() const { return value_ != 0; }

 private:
  friend class AddressSpace;
  explicit constexpr DeviceAddress(uint64_t value) : value_(value) {}
  uint64_t value_ = 0;
};

}  // namespace swiftcache::engine::backend
