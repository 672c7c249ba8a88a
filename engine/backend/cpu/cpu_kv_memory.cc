// SPDX-License-Identifier: Apache-2.0
#include "engine/backend/cpu/cpu_kv_memory.h"

#include <cstring>

#include "glog/logging.h"

namespace swiftcache::engine::backend::cpu {

std::byte* CpuKvMemory::Bytes(DeviceAddress begin, int64_t bytes) const {
  const int64_t offset = begin - base();
  CHECK(offset >= 0 && bytes >= 0 && offset <= this->bytes() - bytes)
      << bytes << " bytes at " << offset << " of the arena";
  return space_.Host(begin);
}

Fence CpuKvMemory::Zero(std::span<const ByteRange> ranges) {
  for (const ByteRange& range : ranges) std::memset(Bytes(range.begin, range.bytes), 0, range.bytes);
  return {};
}

Fence CpuKvMemory::Copy(std::span<const ByteMove> moves) {
  for (const ByteMove& move : moves) std::memcpy(Bytes(move.to, move.bytes), Bytes(move.from, move.bytes), move.bytes);
  return {};
}

}  // namespace swiftcache::engine::backend::cpu
