// SPDX-License-Identifier: Apache-2.0
#include "engine/backend/cuda/uploads.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "common/base/units.h"

namespace swiftcache::engine::backend::cuda {

absl::StatusOr<uint64_t> Uploads::PutBytes(std::span<const std::byte> bytes) {
  const auto size = static_cast<int64_t>(bytes.size());
  RETURN_IF_ERROR(MakeRoom(size));
  const Chunk& chunk = chunks_[chunk_];
  const uint64_t address = chunk.device.address() + static_cast<uint64_t>(used_);
  if (size > 0) {
    std::byte* const staged = chunk.host.data() + used_;
    std::memcpy(staged, bytes.data(), bytes.size());
    if (used_ > 0 && !unsent_.empty()) {  // it lies in this chunk, and what is between them is nobody's
      unsent_.back().bytes = static_cast<int64_t>(address - unsent_.back().to) + size;
    } else {
      unsent_.push_back({.to = address, .from = reinterpret_cast<uint64_t>(staged), .bytes = size});
    }
  }
  used_ += CeilDiv(size, kAlignment) * kAlignment;
  return address;
}

absl::Status Uploads::Send(Stream stream) {
  const std::vector<DeviceCopy> copies = std::exchange(unsent_, {});
  return copies.empty() ? absl::OkStatus() : driver_.Copy(stream, copies);
}

absl::Status Uploads::MakeRoom(int64_t bytes) {
  while (chunk_ < chunks_.size()) {
    if (chunks_[chunk_].host.bytes() - used_ >= bytes) return absl::OkStatus();
    ++chunk_;
    used_ = 0;
  }
  Chunk chunk;  // with room for arrays that grow from step to step: an allocation may wait for all work of the device
  const auto size = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::max(kChunkBytes, bytes))));
  ASSIGN_OR_RETURN(chunk.host, PinnedBytes::Allocate(driver_, size));
  ASSIGN_OR_RETURN(chunk.device, DeviceBytes::Allocate(driver_, size));
  chunks_.push_back(std::move(chunk));
  return absl::OkStatus();
}

}  // namespace swiftcache::engine::backend::cuda
