// SPDX-License-Identifier: Apache-2.0
// The transport between engines whose GPUs reach each other's memory: granted chunks are mapped by their borrower
// through the driver, stores cross its staging memory on the GPU, messages go over a Unix socket per lease.
//
//   CudaIpcOptions options = {.shm_dir = DefaultShmDir(), .name = "chat", .instance_id = id};
//   ASSIGN_OR_RETURN(std::unique_ptr<ShmTransport> transport,
//                    CreateCudaIpcTransport(options, driver, arena, clock, events));
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "engine/backend/cuda/cuda_arena.h"
#include "engine/backend/cuda/driver.h"
#include "engine/transport/shm_transport.h"
#include "engine/transport/transport.h"

namespace swiftcache::engine::transport::cuda_ipc {

struct CudaIpcOptions {
  std::string shm_dir;           // one for all engines that share; made where it is missing
  std::string name;              // of the engine, unique in shm_dir
  std::string instance_id;       // what grants to this engine name
  bool remap_on_return = false;  // CudaIpcMemory
  bool measures_links = false;   // Transport::measures_links
};

/// ShmTransport's protocol over CudaIpcMemory, whose comment says whom an engine trusts and with what. Which GPU a
/// donor's memory is on nobody need say: a driver knows it of what it imports, and refuses to map what its own GPU does
/// not reach; that is an OnOpened with an error.
/// Thread-safety, ownership: ShmTransport's; driver and arena outlive it, and the driver its fences. Errors: those of
/// ShmTransport::Create, and where the driver has no memory for staging Open answers so.
absl::StatusOr<std::unique_ptr<ShmTransport>> CreateCudaIpcTransport(const CudaIpcOptions& options,
                                                                     backend::cuda::Driver& driver,
                                                                     backend::cuda::CudaArena& arena,
                                                                     const Clock& clock, TransportEvents& events);

}  // namespace swiftcache::engine::transport::cuda_ipc
