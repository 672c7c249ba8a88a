// SPDX-License-Identifier: Apache-2.0
#include <memory>

#include "absl/strings/str_cat.h"
#include "engine/backend/cpu/cpu_device.h"
#include "engine/backend/cpu/cpu_kv_memory.h"
#include "engine/transport/shm_transport.h"
#include "services/engine_device.h"

namespace swiftcache::services {
namespace {

using engine::backend::cpu::CpuDevice;
using engine::backend::cpu::CpuKvMemory;
using engine::transport::ShmTransport;
using engine::transport::Transport;

class CpuEngineDevice final : public EngineDevice {
 public:
  explicit CpuEngineDevice(int threads) : device_({.threads = threads}) {}
  engine::backend::Device& device() override { return device_; }
  absl::StatusOr<std::unique_ptr<Transport>> CreateTransport(const TransportOptions& options,
                                                             engine::backend::KvMemory& memory, const Clock& clock,
                                                             engine::transport::TransportEvents& events) override {
    const EngineFlags& flags = *options.flags;
    if (flags.transport != "auto" && flags.transport != "shm") {
      return absl::InvalidArgumentError(
          absl::StrCat("--transport is ", flags.transport, ", which is of GPUs; on a CPU use --transport=shm"));
    }
    return ShmTransport::Create({.shm_dir = flags.shm_dir,
                                 .name = options.name,
                                 .instance_id = options.instance_id,
                                 .link_gbps = static_cast<double>(flags.link_gbps),
                                 .link_latency = flags.link_latency},
                                static_cast<CpuKvMemory&>(memory).arena(), clock, events);
  }

 private:
  CpuDevice device_;
};

}  // namespace

std::unique_ptr<EngineDevice> CreateCpuEngineDevice(const EngineFlags& flags) {
  return std::make_unique<CpuEngineDevice>(static_cast<int>(flags.threads));
}

}  // namespace swiftcache::services
