// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/log/log.h"
#include "engine/backend/cpu/activations.h"
#include "engine/backend/cpu/allowed_cores.h"
#include "engine/backend/cpu/core_share.h"
#include "engine/backend/cpu/cpu_device.h"
#include "engine/backend/cpu/cpu_kv_memory.h"
#include "engine/backend/cpu/isa.h"
#include "engine/transport/shm_transport.h"
#include "services/engine_device.h"

namespace swiftcache::services {
namespace {

using engine::backend::cpu::Activations;
using engine::backend::cpu::ActivationsOfName;
using engine::backend::cpu::AllowedCores;
using engine::backend::cpu::BestIsa;
using engine::backend::cpu::CoreShare;
using engine::backend::cpu::CpuDevice;
using engine::backend::cpu::CpuKvMemory;
using engine::backend::cpu::Isa;
using engine::backend::cpu::IsaName;
using engine::backend::cpu::IsaOfName;
using engine::transport::ShmTransport;
using engine::transport::Transport;

// In --shm_dir, or, where that is on a disk, in a folder that all engines of this user and machine have. Nothing: this
// engine takes all cores whatever others do.
std::unique_ptr<CoreShare> ShareCores(const std::string& shm_dir, const AllowedCores& cores, const Clock& clock) {
  auto share = CoreShare::Join(shm_dir, cores, clock);
  if (absl::IsFailedPrecondition(share.status())) {
    share = CoreShare::Join(absl::StrCat("/dev/shm/swiftcache-", geteuid()), cores, clock, /*remove_folder=*/true);
  }
  if (share.ok()) return *std::move(share);
  LOG(WARNING) << "cores are not shared with other engines: " << share.status().message();
  return nullptr;
}

class CpuEngineDevice final : public EngineDevice {
 public:
  CpuEngineDevice(const EngineFlags& flags, Isa isa, Activations activations)
      : cores_(engine::backend::cpu::FindAllowedCores()),
        share_(flags.threads == 0 ? ShareCores(flags.shm_dir, cores_, clock_) : nullptr),
        device_({.threads = flags.threads == 0 ? cores_.usable : static_cast<int>(flags.threads),
                 .core_share = share_.get(),
                 .max_isa = isa,
                 .activations = activations,
                 .chunks = !flags.remap_on_return}) {}
  engine::backend::Device& device() override { return device_; }
  absl::StatusOr<std::unique_ptr<Transport>> CreateTransport(const TransportOptions& options,
                                                             engine::backend::KvMemory& memory, const Clock& clock,
                                                             engine::transport::TransportEvents& events) override {
    const EngineFlags& flags = *options.flags;
    return ShmTransport::Create({.shm_dir = flags.shm_dir,
                                 .name = options.name,
                                 .instance_id = options.instance_id,
                                 .link_gbps = static_cast<double>(flags.link_gbps),
                                 .link_latency = flags.link_latency,
                                 .remap_on_return = flags.remap_on_return},
                                static_cast<CpuKvMemory&>(memory).arena(), clock, events);
  }

 private:
  const RealClock clock_;
  const AllowedCores cores_;
  const std::unique_ptr<CoreShare> share_;
  CpuDevice device_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<EngineDevice>> CreateCpuEngineDevice(const EngineFlags& flags) {
  if (flags.transport == "cuda_ipc" || flags.transport == "nccl") {
    return absl::InvalidArgumentError(
        absl::StrCat("--transport is ", flags.transport, ", which is of GPUs; on a CPU use --transport=shm"));
  }
  const Isa best = BestIsa(), isa = IsaOfName(flags.isa).value_or(best);
  if (BestIsa(isa) != isa) {
    return absl::FailedPreconditionError(
        absl::StrCat("--isa is ", flags.isa, ", which this processor lacks; its best is ", IsaName(best)));
  }
  return std::make_unique<CpuEngineDevice>(flags, isa, *ActivationsOfName(flags.activations));
}

}  // namespace swiftcache::services
