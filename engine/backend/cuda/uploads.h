// SPDX-License-Identifier: Apache-2.0
// The small arrays that a step's kernels read: written by the host into pinned memory, copied to the device in the order
// of the stream, as many as were put at once, and kept until the step is done.
//
//   uploads.Begin();
//   ASSIGN_OR_RETURN(const int32_t* ids, uploads.Put(token_ids));     // of the device
//   RETURN_IF_ERROR(uploads.Send(stream));                            // before what reads them
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/status_macros.h"
#include "engine/backend/cuda/device_memory.h"

namespace swiftcache::engine::backend::cuda {

/// One step's. Grows to what the largest step needs, by powers of two, then allocates no more. Thread-safety: none.
/// Ownership: owns the memory, borrows the driver. Errors: the driver's.
class Uploads {
 public:
  explicit Uploads(Driver& driver) : driver_(driver) {}
  /// Allocates the first chunk, which is enough for most steps.
  absl::Status Reserve() { return MakeRoom(0); }
  /// Forgets what was put. REQUIRES: nothing that reads it is under way.
  void Begin() {
    chunk_ = used_ = 0;
    unsent_.clear();
  }
  /// Where the device finds a copy of `values`, from the next Send until Begin.
  template <class T>
  absl::StatusOr<const T*> Put(std::span<const T> values) {
    ASSIGN_OR_RETURN(const uint64_t address, PutBytes(std::as_bytes(values)));
    return reinterpret_cast<const T*>(address);
  }
  /// What was put since the last one: one copy, unless a chunk was full. No copy reaches from one chunk into the next,
  /// even where it begins at its end: they are allocations of their own.
  absl::Status Send(Stream stream);

 private:
  static constexpr int64_t kAlignment = 256, kChunkBytes = 1 << 20;
  struct Chunk {
    PinnedBytes host;
    DeviceBytes device;
  };
  absl::StatusOr<uint64_t> PutBytes(std::span<const std::byte> bytes);
  absl::Status MakeRoom(int64_t bytes);

  Driver& driver_;
  std::vector<Chunk> chunks_;
  size_t chunk_ = 0;  // the one that is being filled, and
  int64_t used_ = 0;  // how far
  std::vector<DeviceCopy> unsent_;
};

}  // namespace swiftcache::engine::backend::cuda
