// SPDX-License-Identifier: Apache-2.0
// What an engine computes on, and how engines of its kind share KV memory. Only these files know which devices and
// transports there are: cpu_engine_device.cc, cuda_engine_device.cc where CUDA is built in.
//
//   ASSIGN_OR_RETURN(std::unique_ptr<EngineDevice> device, CreateEngineDevice(flags));
//   ASSIGN_OR_RETURN(auto backend, device->device().CreateBackend(options));
//   const TransportOptions options{.name = name, .instance_id = id, .flags = &flags};
//   ASSIGN_OR_RETURN(auto transport, device->CreateTransport(options, kv, clock, events));
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "engine/backend/device.h"
#include "engine/backend/kv_memory.h"
#include "engine/transport/transport.h"
#include "services/engine_flags.h"

namespace swiftcache::services {

struct TransportOptions {
  std::string name, instance_id;
  const EngineFlags* flags;
};

/// Thread-safety: none. Ownership: outlives what it made. Errors: as named.
class EngineDevice {
 public:
  virtual ~EngineDevice() = default;
  virtual engine::backend::Device& device() = 0;
  /// REQUIRES: `memory` was made by device(), to be shared. Errors: those of the transport.
  virtual absl::StatusOr<std::unique_ptr<engine::transport::Transport>> CreateTransport(
      const TransportOptions& options, engine::backend::KvMemory& memory, const Clock& clock,
      engine::transport::TransportEvents& events) = 0;
};

/// As --backend says; with auto a GPU where there is one that can be used, else the CPU, and a line in the log that says
/// why. FAILED_PRECONDITION: this build, or this machine, has no such device; names the flag and the remedy.
/// INVALID_ARGUMENT: --transport is of another device, or nccl with --remap_on_return, or a limit of the GPU's memory
/// cannot be read.
absl::StatusOr<std::unique_ptr<EngineDevice>> CreateEngineDevice(const EngineFlags& flags);

/// FAILED_PRECONDITION: the processor lacks what --isa names. INVALID_ARGUMENT: --transport is of GPUs.
absl::StatusOr<std::unique_ptr<EngineDevice>> CreateCpuEngineDevice(const EngineFlags& flags);
/// UNAVAILABLE: no GPU; UNIMPLEMENTED: this build has no CUDA; FAILED_PRECONDITION: a GPU that cannot be used;
/// INVALID_ARGUMENT: --transport is of CPUs, or ReadMemoryLimit's.
absl::StatusOr<std::unique_ptr<EngineDevice>> CreateCudaEngineDevice(const EngineFlags& flags);

}  // namespace swiftcache::services
