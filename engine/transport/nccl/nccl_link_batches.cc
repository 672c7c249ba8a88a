// SPDX-License-Identifier: Apache-2.0
// The half of NcclLink that hands its thread batches, and waits for them.
#include <memory>

#include "engine/transport/nccl/nccl_link.h"

namespace swiftcache::engine::transport::nccl {

using backend::cuda::EventFence;

bool NcclLink::Post(const NcclBatchPtr& batch) {
  absl::MutexLock lock(&mutex_);
  if (stopping_ || (batch->number != 0 && batch->number <= given_up_)) {
    batch->over = true;
    return false;
  }
  batch->posted_at = clock_.Now();
  batches_.push_back(batch);
  Wake();
  return true;
}

bool NcclLink::Admit(NcclBatch& batch, const std::vector<uint8_t>& accepted) {
  absl::MutexLock lock(&mutex_);
  if (batch.over) return true;
  if (batch.number == 0 || batch.admitted) return false;
  batch.accepted = accepted;
  Note(batch.admitted);
  return true;
}

bool NcclLink::Conclude(NcclBatch& batch) {
  absl::MutexLock lock(&mutex_);
  if (batch.over) return true;
  if (!batch.admitted || batch.concluded) return false;
  Note(batch.concluded);
  return true;
}

void NcclLink::SetReady(NcclBatch& batch, size_t group, const backend::Fence& after) {
  absl::MutexLock lock(&mutex_);
  if (batch.groups[group].ready) return;
  batch.groups[group].after = after;
  Note(batch.groups[group].ready);
}

void NcclLink::SetAllReady(NcclBatch& batch) {
  absl::MutexLock lock(&mutex_);
  for (NcclGroup& group : batch.groups) group.ready = true;
  Wake();
}

void NcclLink::Hurry() {
  absl::MutexLock lock(&mutex_);
  for (const NcclBatchPtr& batch : batches_) batch->hurried = true;
  Wake();
}

bool NcclLink::HasPassed(const NcclBatch& batch, size_t index) const {
  std::shared_ptr<const EventFence> event;
  {
    absl::MutexLock lock(&mutex_);
    if (batch.over || index < batch.num_done) return true;
    if (!batch.groups[index].posted) return false;
    event = batch.groups[index].event;
  }
  return event == nullptr || event->Passed();
}

const EventFence* NcclLink::EventOf(const NcclBatch& batch, size_t index) const {
  absl::MutexLock lock(&mutex_);
  return batch.over ? nullptr : batch.groups[index].event.get();
}

// An event of a communicator that is given up passes, too: its kernels have ended.
void NcclLink::AwaitPassed(const NcclBatch& batch, size_t index) const {
  std::shared_ptr<const EventFence> event;
  {
    absl::MutexLock lock(&mutex_);
    const auto is_given = [&batch, index] { return batch.over || batch.groups[index].posted; };
    mutex_.Await(absl::Condition(&is_given));
    event = batch.groups[index].event;
  }
  if (event != nullptr) event->Wait();
}

}  // namespace swiftcache::engine::transport::nccl
