// SPDX-License-Identifier: Apache-2.0
// An engine's KV memory on its device: one run of addresses, and the two things that are done to it beside computing.
//
//   DeviceAddress block = kv.base() + index * block_bytes;
//   std::vector<ByteMove> moves = {{.from = block, .to = elsewhere, .bytes = block_bytes}};
//   (void)kv.Copy(moves);
//   std::vector<ByteRange> ranges = {{.begin = block, .bytes = block_bytes}};
//   Fence zeroed = kv.Zero(ranges);
//   ... another may have the block once zeroed.Passed()
#pragma once

#include <cstdint>
#include <span>

#include "engine/backend/device_address.h"
#include "engine/backend/fence.h"

namespace swiftcache::engine::backend {

struct ByteRange {
  DeviceAddress begin;
  int64_t bytes = 0;
};

struct ByteMove {
  DeviceAddress from, to;  // the ranges do not overlap
  int64_t bytes = 0;
};

/// Zeroed at the start. What is asked of it happens in the order of the device's computing: after the steps submitted
/// before, before those submitted after. Thread-safety: none but for base(), bytes() and page_bytes(); the step loop
/// calls it. Ownership: owns the memory, borrows its arguments for the call. Errors: none; ranges outside are the
/// caller's bug and checked. Units: bytes.
class KvMemory {
 public:
  virtual ~KvMemory() = default;
  virtual DeviceAddress base() const = 0;
  virtual int64_t bytes() const = 0;
  /// What others map of it begins and ends on multiples of this from base().
  virtual int64_t page_bytes() const = 0;
  /// Both return the fence behind which the bytes are there for everybody, other engines included.
  virtual Fence Zero(std::span<const ByteRange> ranges) = 0;
  virtual Fence Copy(std::span<const ByteMove> moves) = 0;
  /// How much of that is done in about a millisecond, in which nothing is computed; > 0. An estimate, it may change.
  virtual int64_t bytes_in_a_millisecond() const = 0;
};

}  // namespace swiftcache::engine::backend
