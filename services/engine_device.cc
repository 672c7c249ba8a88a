// SPDX-License-Identifier: Apache-2.0
#include "services/engine_device.h"

#include <utility>

#include "common/log/log.h"
#include "engine/backend/cpu/cpu_device.h"
#include "engine/backend/cpu/cpu_kv_memory.h"

namespace swiftcache::services {

using engine::backend::Device;
using engine::transport::ShmTransport;

absl::StatusOr<std::unique_ptr<Device>> CreateDevice(const EngineFlags& flags) {
  if (flags.backend == "cuda") {
    return absl::FailedPreconditionError("--backend is cuda; this build computes on CPUs alone: use --backend=cpu");
  }
  using engine::backend::cpu::CpuDevice;
  std::unique_ptr<Device> device =
      std::make_unique<CpuDevice>(engine::backend::cpu::CpuDeviceOptions{.threads = static_cast<int>(flags.threads)});
  LOG(INFO) << "--backend=" << flags.backend << ": computes on " << device->name();
  return device;
}

absl::StatusOr<std::unique_ptr<ShmTransport>> CreateTransport(const TransportOptions& options,
                                                              engine::backend::KvMemory& memory, const Clock& clock,
                                                              engine::transport::TransportEvents& events) {
  const EngineFlags& flags = *options.flags;
  return ShmTransport::Create({.shm_dir = flags.shm_dir,
                               .name = options.name,
                               .instance_id = options.instance_id,
                               .link_gbps = static_cast<double>(flags.link_gbps),
                               .link_latency = flags.link_latency},
                              static_cast<engine::backend::cpu::CpuKvMemory&>(memory).arena(), clock, events);
}

}  // namespace swiftcache::services
