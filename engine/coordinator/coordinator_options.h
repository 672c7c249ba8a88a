// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "absl/time/time.h"
#include "engine/coordinator/lease_broker.h"

namespace swiftcache::engine::coordinator {

/// What a coordinator and both its sides are made with. Units: as named.
struct CoordinatorOptions {
  std::string instance_id;
  absl::Duration revoke_deadline = absl::Milliseconds(50);
  absl::Duration ttl = LeaseTerms().ttl;                   // until OnTerms
  absl::Duration broker_patience = absl::Milliseconds(3);  // for its advice on whose lease to revoke
  int64_t num_blocks = 0, block_bytes = 0;                 // of this engine's arena
  int64_t never_lent_blocks = 0;                           // the first of these
  absl::Duration min_request_interval = absl::Milliseconds(200);
  // While there is a shortage and nothing waits, or no lease can be opened.
  absl::Duration max_request_interval = absl::Seconds(5);
};

}  // namespace swiftcache::engine::coordinator
