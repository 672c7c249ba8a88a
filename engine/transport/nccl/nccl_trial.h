// SPDX-License-Identifier: Apache-2.0
// The first transfers of a communicator: a byte from rank 0 to rank 1, and one back. NCCL connects its ranks not when the
// communicator is made but at the first transfer of each direction, which takes longer than a read is waited for.
//
//   NcclTrial trial(nccl, driver, rank);
//   while (!trial.Advance(comm, stream).value()) ...   // once more, when the communicator has settled
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "engine/backend/cuda/device_memory.h"
#include "engine/backend/cuda/driver.h"
#include "engine/backend/cuda/event_fence.h"
#include "engine/transport/nccl/nccl_api.h"

namespace swiftcache::engine::transport::nccl {

/// Both ranks make it, with the same communicator, before anything else is transferred.
/// Thread-safety: none; the communicator's thread has it. Ownership: borrows NCCL and driver. It ends behind an Abort of a
/// communicator under whose trial bytes are still under way, and before its stream. Errors: those of NCCL and the driver.
class NcclTrial {
 public:
  NcclTrial(NcclApi& nccl, backend::cuda::Driver& driver, int rank) : nccl_(nccl), driver_(driver), rank_(rank) {}

  /// What there is to be done now, without waiting. True: both directions are connected. REQUIRES: `comm` has settled;
  /// the same `comm` and `stream` each time.
  absl::StatusOr<bool> Advance(NcclComm comm, backend::cuda::Stream stream);

 private:
  NcclApi& nccl_;
  backend::cuda::Driver& driver_;
  const int rank_;
  backend::cuda::DeviceBytes byte_;
  std::shared_ptr<backend::cuda::EventFence> event_;  // of the transfer under way
  bool is_recorded_ = false;
  int num_over_ = 0;
};

}  // namespace swiftcache::engine::transport::nccl
