// SPDX-License-Identifier: Apache-2.0
// Where CUDA is built in (SWIFTCACHE_CUDA).
#include <cstdlib>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/log/log.h"
#include "engine/backend/cuda/cuda_device.h"
#include "engine/backend/cuda/cuda_kv_memory.h"
#include "engine/backend/cuda/memory_limit.h"
#include "engine/backend/cuda/native/cuda_driver.h"
#include "engine/backend/cuda/native/cuda_kernels.h"
#include "engine/transport/cuda_ipc/cuda_ipc_transport.h"
#include "engine/transport/nccl/nccl_library.h"
#include "engine/transport/nccl/nccl_transport.h"
#include "services/engine_device.h"

namespace swiftcache::services {
namespace {

using engine::backend::cuda::CudaKvMemory;
using engine::transport::Transport;
using engine::transport::nccl::NcclLibrary;
using engine::transport::nccl::NcclTransport;

class CudaEngineDevice final : public EngineDevice {
 public:
  CudaEngineDevice(std::unique_ptr<engine::backend::cuda::Driver> driver,
                   std::unique_ptr<engine::backend::Device> device)
      : driver_(std::move(driver)), device_(std::move(device)) {}
  engine::backend::Device& device() override { return *device_; }
  absl::StatusOr<std::unique_ptr<Transport>> CreateTransport(const TransportOptions& options,
                                                             engine::backend::KvMemory& memory, const Clock& clock,
                                                             engine::transport::TransportEvents& events) override {
    const EngineFlags& flags = *options.flags;
    engine::backend::cuda::CudaArena& arena = static_cast<CudaKvMemory&>(memory).arena();
    if (flags.transport == "nccl") {
      ASSIGN_OR_RETURN(nccl_, NcclLibrary::Load());
      return NcclTransport::Create({.shm_dir = flags.shm_dir,
                                    .name = options.name,
                                    .instance_id = options.instance_id,
                                    .arena = arena.base(),
                                    .arena_bytes = arena.mapped_bytes()},
                                   *nccl_, *driver_, clock, events);
    }
    return engine::transport::cuda_ipc::CreateCudaIpcTransport({.shm_dir = flags.shm_dir,
                                                                .name = options.name,
                                                                .instance_id = options.instance_id,
                                                                .remap_on_return = flags.remap_on_return,
                                                                .measures_links = flags.stream == "auto"},
                                                               *driver_, arena, clock, events);
  }

 private:
  const std::unique_ptr<engine::backend::cuda::Driver> driver_;
  const std::unique_ptr<engine::backend::Device> device_;
  std::unique_ptr<NcclLibrary> nccl_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<EngineDevice>> CreateCudaEngineDevice(const EngineFlags& flags) {
  namespace cuda = engine::backend::cuda;
  ASSIGN_OR_RETURN(std::unique_ptr<cuda::Driver> driver, cuda::OpenDriver());
  if (flags.transport == "shm") {
    return absl::InvalidArgumentError(
        "--transport is shm, which is of CPUs; on a GPU use --transport=cuda_ipc or nccl");
  }
  ASSIGN_OR_RETURN(const std::optional<cuda::MemoryLimit> limit,
                   cuda::ReadMemoryLimit([](const char* name) { return std::getenv(name); }, driver->info().uuid));
  if (limit) LOG(INFO) << limit->source << " allows this engine " << limit->bytes << " bytes of the GPU's memory";
  ASSIGN_OR_RETURN(std::unique_ptr<cuda::Kernels> kernels, cuda::CudaKernels::Create(*driver));
  ASSIGN_OR_RETURN(auto device, cuda::CudaDevice::Create({.graphs = flags.cuda_graphs,
                                                          .lends_chunks = flags.remap_on_return,
                                                          .shows_memory = flags.transport != "nccl",
                                                          .memory_limit = limit},
                                                         *driver, std::move(kernels)));
  return std::make_unique<CudaEngineDevice>(std::move(driver), std::move(device));
}

}  // namespace swiftcache::services
