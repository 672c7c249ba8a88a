// SPDX-License-Identifier: Apache-2.0
// What computes and remembers for one engine: a CPU, or a GPU. It makes everything that lies on it.
//
//   ASSIGN_OR_RETURN(std::unique_ptr<Backend> backend, device.CreateBackend({.attention = {...}, .kv = layout}));
//   ASSIGN_OR_RETURN(std::unique_ptr<KvMemory> kv, device.CreateKvMemory({.bytes = bytes, .block_bytes = block_bytes}));
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/backend/backend.h"
#include "engine/backend/kv_layout.h"
#include "engine/backend/kv_memory.h"

namespace swiftcache::engine::backend {

/// What a backend's call, or a step, says where the device is lost: nothing works on it any more.
inline bool IsDeviceLost(const absl::Status& status) { return absl::IsDataLoss(status); }

/// What a model fixes of its backend.
struct BackendOptions {
  Precision precision = Precision::kBf16;
  AttentionShape attention = {};
  KvLayout kv = {};
  std::vector<float> inverse_frequencies = {};  // of rope, [head_dim / 2]
  int64_t max_rows = 512;                       // of a step
};

struct KvMemoryOptions {
  int64_t bytes = 0;        // whole blocks of it are used
  int64_t block_bytes = 0;  // > 0
  bool shared = false;      // may be lent to other processes
};

/// What a device has of its own, at this moment: others may use it too.
struct DeviceMemory {
  int64_t total_bytes = 0;
  int64_t free_bytes = 0;
  std::string limited_by;  // what allows this process less than the device has; "": nothing
  std::string id;  // the same in every process of the machine that takes from this memory; part of a file's name
};

/// Thread-safety: none. Ownership: outlives what it made. Errors: RESOURCE_EXHAUSTED (memory; names the flag and the
/// bytes), INVALID_ARGUMENT (shapes that contradict each other, less memory than a block), FAILED_PRECONDITION (memory
/// that cannot be shared here).
class Device {
 public:
  virtual ~Device() = default;
  /// For a log line: what computes, and with what.
  virtual std::string name() const = 0;
  /// None: what it computes in is the machine's, and how much of that is an engine's nobody knows.
  virtual std::optional<DeviceMemory> memory() const = 0;
  /// That a matrix packed from the source alone takes.
  virtual int64_t PackedBytes(const WeightSource& source, Precision precision) const {
    return source.rows * source.cols * (precision == Precision::kF32 ? 4 : 2);
  }
  virtual absl::StatusOr<std::unique_ptr<Backend>> CreateBackend(const BackendOptions& options) = 0;
  virtual absl::StatusOr<std::unique_ptr<KvMemory>> CreateKvMemory(const KvMemoryOptions& options) = 0;
};

}  // namespace swiftcache::engine::backend
