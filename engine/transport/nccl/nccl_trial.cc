// SPDX-License-Identifier: Apache-2.0
#include "engine/transport/nccl/nccl_trial.h"

#include "common/base/status_macros.h"

namespace swiftcache::engine::transport::nccl {

using backend::cuda::DeviceBytes;
using backend::cuda::EventFence;

absl::StatusOr<bool> NcclTrial::Advance(NcclComm comm, backend::cuda::Stream stream) {
  if (event_ != nullptr) {
    if (!is_recorded_) RETURN_IF_ERROR(event_->Record(stream));
    is_recorded_ = true;
    ASSIGN_OR_RETURN(const bool passed, event_->Ask());
    if (!passed) return false;
    event_ = nullptr;
    ++num_over_;
  }
  if (num_over_ == 2) return true;
  if (num_over_ == 0) {
    ASSIGN_OR_RETURN(byte_, DeviceBytes::Allocate(driver_, 1, stream));
  }
  ASSIGN_OR_RETURN(event_, EventFence::Create(driver_));
  is_recorded_ = false;
  const NcclDirection direction = num_over_ == rank_ ? NcclDirection::kSend : NcclDirection::kReceive;
  const NcclRun run = {byte_.address(), 1};
  RETURN_IF_ERROR(nccl_.Transfer(comm, direction, 1 - rank_, {&run, 1}, stream));
  return false;
}

}  // namespace swiftcache::engine::transport::nccl
