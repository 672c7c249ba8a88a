// SPDX-License-Identifier: Apache-2.0
// The step loop as a coordinator sees it: who owns the KV state and does to it what a lease demands.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "engine/kv/lease_id.h"
#include "engine/lease/lease.h"
#include "engine/transport/transport.h"

namespace swiftcache::engine::coordinator {

/// Called by the coordinator's and the transport's threads; must not block. Answers go to the coordinator's functions.
class LoopPort {
 public:
  virtual ~LoopPort() = default;
  // As a donor.
  /// Move our own blocks out of the extent and place no new ones there, in the time that own tokens leave for it ->
  /// Coordinator::Cleared.
  virtual void Clear(kv::LeaseId id, const lease::Extent& extent) = 0;
  /// It is not to be lent any more: if Clear has not begun, it does not -> Coordinator::Cleared, not ok.
  virtual void StopClearing(kv::LeaseId id) = 0;
  /// The extent is ours again.
  virtual void TakeBack(kv::LeaseId id, const lease::Extent& extent) = 0;
  // As a borrower.
  /// The lease may be used. `donor`: whose memory it is; several leases may be one donor's.
  virtual void Use(kv::LeaseId id, int64_t num_blocks, const std::string& donor, const transport::LeaseView& view) = 0;
  /// No new use; move or drop what lies there -> Coordinator::Drained. A step that reads the lease is cut short.
  virtual void Drain(kv::LeaseId id, absl::Time until) = 0;
  /// Its blocks are lost -> Coordinator::Dropped, within a second, or one more where a copy of them is on its way to
  /// another donor that stands still. A step that would last much longer is cut short.
  virtual void Lose(kv::LeaseId id) = 0;
  virtual void Stored(transport::Ticket ticket, const absl::Status& status) = 0;
  /// What donors can still lend, as far as the broker knows; `shortage`: why that is less than was wanted, or "".
  virtual void Lendable(int64_t bytes, const std::string& shortage) = 0;
};

}  // namespace swiftcache::engine::coordinator
