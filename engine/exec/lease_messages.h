// SPDX-License-Identifier: Apache-2.0
// What the coordinator and the transport tell the step loop, as messages in its mailbox.
#pragma once

#include <cstdint>
#include <string>
#include <variant>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "engine/kv/lease_id.h"
#include "engine/lease/lease.h"
#include "engine/transport/transport.h"

namespace swiftcache::engine::exec {

// Meaning: coordinator::LoopPort's functions of these names.
struct ClearMessage {
  kv::LeaseId id;
  lease::Extent extent;
};
struct StopClearingMessage {
  kv::LeaseId id;
};
struct TakeBackMessage {
  kv::LeaseId id;
  lease::Extent extent;
  absl::Time returned_at;
};
struct UseMessage {
  kv::LeaseId id;
  int64_t num_blocks = 0;
  std::string donor;
  transport::LeaseView view;
};
struct DrainMessage {
  kv::LeaseId id;
  absl::Time until;
};
struct LoseMessage {
  kv::LeaseId id;
};
struct StoredMessage {
  transport::Ticket ticket;
  absl::Status status;
};
struct LendableMessage {
  int64_t bytes = 0;
  std::string shortage;
};
using LeaseMessage = std::variant<ClearMessage, StopClearingMessage, TakeBackMessage, UseMessage, DrainMessage,
                                  LoseMessage, StoredMessage, LendableMessage>;

}  // namespace swiftcache::engine::exec
