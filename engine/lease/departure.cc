// SPDX-License-Identifier: Apache-2.0
#include "engine/lease/departure.h"

#include <algorithm>

namespace swiftcache::engine::lease {

void Departure::Drain(absl::Time until, absl::Time now, const Terms& terms) {
  if (lost()) return;
  const absl::Duration time = until - now;
  const absl::Time save_until = now + time / kDrainDivisor;
  const absl::Duration half = terms.revoke_deadline / kDrainDivisor;
  save_idle_until_ = std::min({save_until, now + half, until - half});
  if (draining()) {
    phase_ = Phase::kSaving;
    save_until_ = std::min(save_until_, save_until);
    return;
  }
  save_until_ = save_until;
  const bool unhurried = time >= std::max(kUnhurried, kUnhurriedDeadlines * terms.revoke_deadline);
  if (unhurried && terms.has_elsewhere && !given_back_) {
    phase_ = Phase::kWaiting;
    leaves_at_ = now + std::min(time / kRoomDivisor, kRoomPatience);
  } else {
    phase_ = Phase::kSaving;
  }
}

void Departure::NoRoom() { leaves_at_ = absl::InfinitePast(); }

void Departure::Empty() {
  if (waiting()) phase_ = Phase::kEmptying;
}

void Departure::Emptied() {
  if (emptying()) phase_ = Phase::kSaving;
}

}  // namespace swiftcache::engine::lease
