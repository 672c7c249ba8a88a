// SPDX-License-Identifier: Apache-2.0
#include "engine/transport/cuda_ipc/cuda_ipc_transport.h"

#include "engine/transport/cuda_ipc/cuda_ipc_memory.h"

namespace swiftcache::engine::transport::cuda_ipc {

absl::StatusOr<std::unique_ptr<ShmTransport>> CreateCudaIpcTransport(const CudaIpcOptions& options,
                                                                     backend::cuda::Driver& driver,
                                                                     backend::cuda::CudaArena& arena,
                                                                     const Clock& clock, TransportEvents& events) {
  return ShmTransport::CreateOver(
      "cuda_ipc",
      std::make_unique<CudaIpcMemory>(driver, arena, options.remap_on_return,
                                      options.measures_links ? &clock : nullptr),
      {.shm_dir = options.shm_dir, .name = options.name, .instance_id = options.instance_id}, clock, events);
}

}  // namespace swiftcache::engine::transport::cuda_ipc
