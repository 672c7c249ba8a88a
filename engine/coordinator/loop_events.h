// SPDX-License-Identifier: Apache-2.0
// What the step loop says of leases: its answers to the messages of loop_message.h, and what it needs.
//
//   parts.coordinator->Cleared(message.id, /*ok=*/true);
//   parts.coordinator->NeedBack(/*blocks=*/12, blocks_lent);    // -> TakeBackMessage, within revoke_deadline
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "engine/coordinator/lease_broker.h"
#include "engine/coordinator/step_reads.h"
#include "engine/kv/lease_id.h"

namespace swiftcache::engine::coordinator {

/// Hears of the loop. Thread-safety: one loop's thread calls it; nothing blocks. Ownership: the loop borrows it until
/// it has ended. Errors: none: what is said of a lease that has ended, or is said too late, is ignored. Units: as
/// named.
class LoopEvents {
 public:
  virtual ~LoopEvents() = default;
  virtual void Cleared(kv::LeaseId id, bool ok) = 0;
  virtual void Drained(kv::LeaseId id) = 0;
  virtual void Dropped(kv::LeaseId id) = 0;
  virtual void GenerationChanged(kv::LeaseId id) = 0;
  virtual void StoreFailed(kv::LeaseId id, const absl::Status& why) = 0;
  virtual void DonorSilent(kv::LeaseId id) = 0;
  /// Nobody has used it for long: it is drained, then released.
  virtual void GiveBack(kv::LeaseId id) = 0;
  /// How much of what lies there was used lately (kv::Tiers::Heat): of several its donor takes the coldest back first.
  virtual void NoteHeat(kv::LeaseId id, int64_t heat) = 0;
  virtual StepReads& step_reads() = 0;
  /// Own memory is needed: revokes leases until at least `blocks` of it are on their way back, and what the broker
  /// advises beyond that, if its advice comes before the memory does. Repeated needs are one.
  /// `blocks_lent`, as the loop counts them: what came back and it has not heard of is not asked for again.
  virtual void NeedBack(int64_t blocks, int64_t blocks_lent) = 0;
  /// More memory would be of use; `waiting_tokens` is the weight among borrowers. Repeated wishes are one, and 0 bytes
  /// take back what the broker has not been asked for yet.
  virtual void WishForMemory(int64_t bytes, int64_t waiting_tokens) = 0;
  virtual void ReportWindow(const Window& window) = 0;
};

}  // namespace swiftcache::engine::coordinator
