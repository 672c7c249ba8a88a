// SPDX-License-Identifier: Apache-2.0
// The coordinator's words as messages in the loop's mailbox; a step under way hears at once what concerns it.
//
//   LeasePort port([&mailbox](LeaseMessage message) { mailbox.Push(std::move(message)); }, &urgency, &clock);
//   coordinator.Start(&transport, &broker, &port);
#pragma once

#include <functional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "engine/coordinator/coordinator.h"
#include "engine/exec/lease_messages.h"
#include "engine/exec/urgency.h"

namespace swiftcache::engine::exec {

/// Thread-safety: as safe as `push`, which must not block. Ownership: borrows urgency and clock. Errors: none.
class LeasePort final : public coordinator::LoopPort {
 public:
  /// A step that reads what is wanted back may take this part of the time until then; a longer one is cut short.
  static constexpr int kStepDivisor = 4;

  LeasePort(std::function<void(LeaseMessage)> push, Urgency* urgency, const Clock* clock)
      : push_(std::move(push)), urgency_(*urgency), clock_(*clock) {}
  void Clear(kv::LeaseId id, const lease::Extent& extent) override { push_(ClearMessage{id, extent}); }
  void StopClearing(kv::LeaseId id) override { push_(StopClearingMessage{id}); }
  void TakeBack(kv::LeaseId id, const lease::Extent& extent) override {
    push_(TakeBackMessage{id, extent, clock_.Now()});
  }
  void Use(kv::LeaseId id, int64_t num_blocks, const std::string& donor, const transport::LeaseView& view) override {
    push_(UseMessage{id, num_blocks, donor, view});
  }
  void Drain(kv::LeaseId id, absl::Time until) override {
    const absl::Time now = clock_.Now();
    urgency_.WantedBack(id, now + (until - now) / kStepDivisor);
    push_(DrainMessage{id, until});
  }
  void Lose(kv::LeaseId id) override {
    urgency_.Lost(id, clock_.Now());
    push_(LoseMessage{id});
  }
  void Stored(transport::Ticket ticket, const absl::Status& status) override { push_(StoredMessage{ticket, status}); }
  void Lendable(int64_t bytes, const std::string& shortage) override { push_(LendableMessage{bytes, shortage}); }

 private:
  const std::function<void(LeaseMessage)> push_;
  Urgency& urgency_;
  const Clock& clock_;
};

}  // namespace swiftcache::engine::exec
