// SPDX-License-Identifier: Apache-2.0
// What the environment allows this process of a GPU's memory where somebody divides it: CUDA MPS, and the hooks of
// container schedulers (HAMi's libvgpu and its like). Whether cudaMemGetInfo knows of it differs by who enforces it: with
// MPS it may tell what is free by the limit and what there is in all without it, or nothing of the limit.
//
//   ASSIGN_OR_RETURN(const auto limit, ReadMemoryLimit([](const char* name) { return getenv(name); }, info.uuid));
//   memory = Limited(memory, limit, driver.allocated_bytes());
//
//   | variable                                       | value            | whose                                              |
//   |------------------------------------------------|------------------|----------------------------------------------------|
//   | CUDA_MPS_PINNED_DEVICE_MEM_LIMIT               | 0=10G,GPU-..=8G  | a client's of MPS; GPUs by ordinal or UUID; G or M |
//   | CUDA_DEVICE_MEMORY_LIMIT_0, and so on          | 3000m, 2g, bytes | a container's, by the ordinal of the GPU; 0: none  |
//   | CUDA_DEVICE_MEMORY_LIMIT                       | the same         | of each GPU that has none of its own               |
//
// A MIG slice needs nothing here: its driver calls what the slice has all there is.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "engine/backend/device.h"

namespace swiftcache::engine::backend::cuda {

struct MemoryLimit {
  int64_t bytes = 0;
  std::string source;  // "CUDA_DEVICE_MEMORY_LIMIT_0=3000m"
};

/// The smallest of those that may be of the first GPU that CUDA_VISIBLE_DEVICES leaves, whose UUID is `uuid`
/// (DeviceInfo's). An ordinal may count the GPUs of this process, or those of the machine, as CUDA_VISIBLE_DEVICES does;
/// where that names a GPU by UUID, any ordinal may be ours. `variable`: its value, or null. INVALID_ARGUMENT: a value
/// that cannot be read; names variable, value, what was wanted and the remedy.
absl::StatusOr<std::optional<MemoryLimit>> ReadMemoryLimit(absl::FunctionRef<const char*(const char*)> variable,
                                                           std::string_view uuid);

/// `memory` as the driver says it, and of which this process has taken `taken_bytes`, under the limit.
DeviceMemory Limited(DeviceMemory memory, const std::optional<MemoryLimit>& limit, int64_t taken_bytes);

}  // namespace swiftcache::engine::backend::cuda
