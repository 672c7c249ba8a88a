// SPDX-License-Identifier: Apache-2.0
// What the step loop hears of leases: it owns the KV state, and does to it what a lease demands. The coordinator and the
// transport push these messages into its mailbox; its answers are LoopEvents.
//
//   coordinator.Start(&transport, &broker, [&mailbox](LoopMessage message) { mailbox.Push(std::move(message)); });
//   ... std::visit([this](const auto& m) { Do(m); }, message);   // the loop, between two steps
//
// Of each message. Thread-safety: a value: whoever makes it hands it over. Ownership: it owns what it names, but for
// the memory behind a LeaseView, which is mapped until the loop has said Drained or Dropped. Errors: none, but for the
// status of a store. Units: extents in blocks of the own arena, `num_blocks` in the borrower's; times by the own clock.
#pragma once

#include <cstdint>
#include <string>
#include <variant>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "engine/kv/lease_id.h"
#include "engine/lease/lease.h"
#include "engine/transport/transport.h"

namespace swiftcache::engine::coordinator {

/// The broker's terms.
struct TermsMessage {
  absl::Duration scale_down_window;
};

// To a donor.

/// Move our own blocks out of the extent and place no new ones there, in the time that own tokens leave for it ->
/// Coordinator::Cleared.
struct ClearMessage {
  kv::LeaseId id;
  lease::Extent extent;
};
/// It is not to be lent any more: if Clear has not begun, it does not -> Coordinator::Cleared, not ok.
struct StopClearingMessage {
  kv::LeaseId id;
};
/// Nobody has the extent any more, and when it is ours again nobody knows: there is no other memory for it.
struct WithheldMessage {
  kv::LeaseId id;
  lease::Extent extent;
};
/// The extent is ours again.
struct TakeBackMessage {
  kv::LeaseId id;
  lease::Extent extent;
  absl::Time returned_at;  // now, as the coordinator reads the clock
};

// To a borrower.

/// The lease may be used. `donor`: whose memory it is; several leases may be one donor's.
struct UseMessage {
  kv::LeaseId id;
  int64_t num_blocks = 0;
  std::string donor;
  transport::LeaseView view;
};
/// No new use; move or drop what lies there -> Coordinator::Drained. A step is cut short that reads the lease, or
/// for what is to be saved there.
struct DrainMessage {
  kv::LeaseId id;
  absl::Time until;
};
/// Its blocks are lost -> Coordinator::Dropped, within a second, or one more where a copy of them is on its way to
/// another donor that stands still. A step that would last much longer is cut short.
struct LoseMessage {
  kv::LeaseId id;
};
/// Of a Transport::Store.
struct StoredMessage {
  transport::Ticket ticket;
  absl::Status status;
};
/// What donors can still lend or what is on its way, as far as the broker knows; `shortage`: why that is less than was
/// wanted, or "".
struct LendableMessage {
  int64_t bytes = 0;
  std::string shortage;
  bool for_need = false;  // it was asked while requests wait: for these others give up what they merely cache
};

using LoopMessage = std::variant<ClearMessage, StopClearingMessage, WithheldMessage, TakeBackMessage, UseMessage,
                                 DrainMessage, LoseMessage, StoredMessage, LendableMessage, TermsMessage>;

}  // namespace swiftcache::engine::coordinator
