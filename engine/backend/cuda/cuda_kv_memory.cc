// SPDX-License-Identifier: Apache-2.0
#include "engine/backend/cuda/cuda_kv_memory.h"

#include <glog/logging.h>

#include <vector>

#include "engine/backend/cuda/cuda_address.h"

namespace swiftcache::engine::backend::cuda {

uint64_t CudaKvMemory::NumberIn(DeviceAddress begin, int64_t bytes) const {
  const int64_t offset = begin - base();
  CHECK(offset >= 0 && bytes >= 0 && offset <= this->bytes() - bytes)
      << bytes << " bytes at " << offset << " of the arena";
  return ToNumber(begin);
}

Fence CudaKvMemory::Zero(std::span<const ByteRange> ranges) {
  for (const ByteRange& range : ranges) {
    if (range.bytes == 0) continue;
    const absl::Status status = driver_.Zero(stream_, NumberIn(range.begin, range.bytes), range.bytes);
    if (!status.ok()) return fences_.Failed(status);
  }
  return fences_.Record();
}

Fence CudaKvMemory::Copy(std::span<const ByteMove> moves) {
  std::vector<DeviceCopy> copies;
  for (const ByteMove& move : moves) {
    if (move.bytes == 0) continue;
    copies.push_back(
        {.to = NumberIn(move.to, move.bytes), .from = NumberIn(move.from, move.bytes), .bytes = move.bytes});
  }
  if (!copies.empty()) {
    if (const absl::Status status = driver_.Copy(stream_, copies); !status.ok()) return fences_.Failed(status);
  }
  return fences_.Record();
}

}  // namespace swiftcache::engine::backend::cuda
