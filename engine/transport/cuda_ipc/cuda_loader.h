// SPDX-License-Identifier: Apache-2.0
// Brings pieces of leases into local memory by the borrower's copy engine, and knows which of them can be trusted.
//
//   CudaLoader loader(driver, leases, clock);
//   const std::shared_ptr<const PendingLoad> layer = loader.Begin(slices, slots_read);
//   backend.WaitFor(layer->Arrival());                   // an event: the device waits, the host does not
//   for (kv::LeaseId lost : layer->Await()) ...          // once the device is done
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "engine/backend/cuda/copy_lane.h"
#include "engine/backend/cuda/driver.h"
#include "engine/backend/fence.h"
#include "engine/transport/peer_memory.h"
#include "engine/transport/shm_borrower.h"
#include "engine/transport/shm_lease.h"
#include "engine/transport/transport.h"

namespace swiftcache::engine::transport::cuda_ipc {

/// Copies are given to the device at once where what they wait for is an event of it, or has passed, so that all layers
/// of a step are ordered by events without a host between them; elsewhere a thread waits first. That thread sees each
/// load's end, in the order in which they were begun, and then compares the leases' words: a lease whose word has
/// changed by then is lost, also where its bytes had arrived before.
///
/// Why what is not lost is right, in both orders. The donor does
///     (1) word = g + 1;   (2) full fence (ShmGenerations::Advance);   (3) launch work that writes the memory
/// and the borrower
///     (a) copy on its device;   (b) see the copy's event pass, on the host;   (c) read the word.
/// If (a) read a byte of (3), then 1 came before the launch, the launch before the write, the write before (a), (a)
/// before its event, that before (b), and b before (c): the word is host memory that both processes cache coherently, (b)
/// acquires what the device did before the event, and WordCheck::Holds keeps (c) behind (b). So (c) sees g + 1 or later,
/// and the lease is lost. Turned round: where (c) sees g, no byte of (3) was read, and all was what the grant promises.
///
/// Why reads under way do no harm when the owner uses its memory again: they only read (mappings are made so), through
/// a mapping that stays until the load is over (`Job::leases`), of physical memory that lives as long as it is mapped
/// anywhere, whether the donor remaps it or dies. Their (c) is still to come, and finds the changed word. The owner waits
/// for none of them.
///
/// Thread-safety: safe. Ownership: owns its lane and the thread; borrows driver, leases and clock. Errors: what the
/// device would not copy is lost: a lease that the driver refuses alone, the whole load where copies fail that it took.
class CudaLoader final : public LeaseLoader {
 public:
  CudaLoader(backend::cuda::Driver& driver, const ShmBorrower& leases, const Clock& clock);
  ~CudaLoader() override { Stop(); }

  std::shared_ptr<const PendingLoad> Begin(std::vector<LoadPiece> pieces, const backend::Fence& after) override
      ABSL_LOCKS_EXCLUDED(mutex_);
  void AddStats(TransportStats& stats) const override ABSL_LOCKS_EXCLUDED(mutex_);
  void Stop() override ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  class Job;
  class Known;
  using JobPtr = std::shared_ptr<Job>;

  void Run() ABSL_LOCKS_EXCLUDED(mutex_);
  void Give(Job& job);
  std::vector<std::vector<backend::cuda::DeviceCopy>> Locate(Job& job) const;
  void Finish(Job& job) ABSL_LOCKS_EXCLUDED(mutex_);
  bool HasWork() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopping_ || !begun_.empty(); }
  bool IsKnown(const Job& job) const ABSL_LOCKS_EXCLUDED(mutex_);
  void WaitFor(const Job& job) const ABSL_LOCKS_EXCLUDED(mutex_);

  backend::cuda::Driver& driver_;
  const ShmBorrower& leases_;
  const Clock& clock_;
  backend::cuda::CopyLane lane_;
  mutable absl::Mutex mutex_;
  std::deque<JobPtr> begun_ ABSL_GUARDED_BY(mutex_);
  absl::Time last_loaded_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  TransportStats stats_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last: it uses everything above
};

}  // namespace swiftcache::engine::transport::cuda_ipc
