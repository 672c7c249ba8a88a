// SPDX-License-Identifier: Apache-2.0
#include "engine/coordinator/borrower_side.h"

#include <algorithm>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/log/log.h"
#include "engine/lease/departure.h"

namespace swiftcache::engine::coordinator {

using kv::LeaseId;
using lease::Borrower;
using lease::Departure;

namespace {

// The time of a drain that nobody waits for: a step may come before it, as before any longer than revoke_deadline. So
// long a drain could wait for room elsewhere (Departure::kUnhurried); this one does not, since the loop that gives a
// lease back has said so first (Departure::GiveBack).
constexpr absl::Duration kUnusedDrain = absl::Seconds(1);

}  // namespace

BorrowerSide::Counters::Counters(Metrics& metrics)
    : borrowed(metrics.Counter("swiftcache_lease_borrowed_total", "Leases of others' memory that came into use")),
      unread(metrics.Counter("swiftcache_lease_unread_total",
                             "Leases of others' memory given back at once, since no step read them")),
      lost(metrics.Counter("swiftcache_lease_lost_total", "Leases of others' memory lost with what they held")),
      given_back(metrics.Counter("swiftcache_lease_given_back_total",
                                 "Leases of others' memory given back as nobody used them")) {}

BorrowerSide::BorrowerSide(const CoordinatorOptions& options, const Clock& clock, Metrics& metrics)
    : options_(options),
      clock_(clock),
      counters_(metrics),
      borrower_({.instance_id = options.instance_id,
                 .block_bytes = options.block_bytes,
                 .ttl = options.ttl,
                 .drain = options.revoke_deadline}),
      request_interval_(options.min_request_interval),
      fruitless_interval_(options.min_request_interval) {}

void BorrowerSide::Start(transport::Transport* transport, LeaseBroker* broker, std::function<void(LoopMessage)> push) {
  transport_ = transport;
  broker_ = broker;
  push_ = std::move(push);
}

absl::Time BorrowerSide::NextDeadline() const {
  absl::Time next = borrower_.NextDeadline();
  for (const auto& [id, time] : release_held_at_) next = std::min(next, time);
  if (wished_bytes_ > 0 && !request_under_way_) next = std::min(next, NextRequest());
  return next;
}

void BorrowerSide::Tick(absl::Time now) {
  ReleaseHeld(now);
  borrower_.Tick(now);
  MaybeRequest(now);
}

void BorrowerSide::Opened(LeaseId id, const absl::StatusOr<transport::LeaseView>& view, absl::Time now) {
  const auto open = views_.find(id);
  if (view.ok() && open != views_.end()) open->second = *view;  // else it was closed meanwhile
  borrower_.Opened(id, view.ok(), now);
  if (view.ok()) {
    opening_failed_at_ = absl::InfinitePast();
    failed_since_request_ = false;
    fruitless_interval_ = options_.min_request_interval;
  } else if (!absl::IsPermissionDenied(view.status())) {  // with that a donor refuses what it has taken back meanwhile
    opening_failed_at_ = now;
    failed_since_request_ = true;
  }
  if (!view.ok()) LOG(WARNING) << "lease " << id << " could not be opened: " << view.status();
}

void BorrowerSide::GiveBackUnused(LeaseId id, absl::Time now) {
  counters_.given_back.Increment();
  borrower_.GiveBack(id, kUnusedDrain, now);
}

void BorrowerSide::GiveBackAll(absl::Time now) {
  wished_bytes_ = 0;
  borrower_.GiveBackAll(options_.revoke_deadline, now);
}

// --- more of them

void BorrowerSide::Wish(int64_t bytes, int64_t waiting_tokens, absl::Time now) {
  if (!borrower_.borrows()) return;  // the loop goes on, and wants what it gives back
  wished_bytes_ = bytes;
  waiting_tokens_ = waiting_tokens;
  MaybeRequest(now);
}

// While requests wait for memory, what a donor can lend again is worth a question at once. So it is when a lease has gone:
// what could not be had came on top of that. Not where leases come and cannot be opened: each costs its donor a grant. An
// answer without leases costs nobody anything, whatever could not be opened before it.
absl::Time BorrowerSide::NextRequest() const {
  const absl::Duration interval = waiting_tokens_ > 0 ? options_.min_request_interval : request_interval_;
  return std::max(last_request_ + interval, opening_failed_at_ + fruitless_interval_);
}

void BorrowerSide::MaybeRequest(absl::Time now) {
  if (wished_bytes_ <= 0 || request_under_way_ || now < NextRequest()) return;
  if (now - last_request_ > 2 * request_interval_) AskSoon();  // it is another shortage than the one before
  if (std::exchange(failed_since_request_, false)) {
    fruitless_interval_ = std::min(2 * fruitless_interval_, options_.max_request_interval);
  }
  request_under_way_ = true;
  asked_for_waiting_ = waiting_tokens_ > 0;
  last_request_ = now;
  broker_->RequestLease({.key = absl::StrCat(responses_ + 1),
                         .want_bytes = std::exchange(wished_bytes_, 0),
                         .waiting_tokens = waiting_tokens_,
                         .held_bytes = borrower_.held_bytes()});
}

void BorrowerSide::Answered(const absl::StatusOr<LeaseResponse>& answer, absl::Time now) {
  request_under_way_ = false;
  if (answer.ok()) ++responses_;  // else the broker may have granted it: the next attempt is the same request
  const bool short_of = !answer.ok() || (!answer->shortage.empty() && answer->coming_bytes == 0);
  if (!short_of) {
    AskSoon();
  } else if (!asked_for_waiting_) {
    request_interval_ = std::min(2 * request_interval_, options_.max_request_interval);
  }
  last_request_ = now;
  if (!answer.ok()) return;
  const int64_t on_its_way = answer->offered_bytes + answer->coming_bytes + borrower_.opening_bytes();
  push_(LendableMessage{answer->lendable_bytes + on_its_way, answer->shortage, asked_for_waiting_});
}

// --- what is to be done

bool BorrowerSide::Act() {
  const std::vector<Borrower::Action> actions = borrower_.TakeActions();
  for (const Borrower::Action& action : actions) std::visit([this](const auto& a) { Do(a); }, action);
  return !actions.empty();
}

void BorrowerSide::Do(const Borrower::Open& a) {
  views_.emplace(a.lease.id, transport::LeaseView());
  transport_->Open({.lease = a.lease.id,
                    .channel = a.lease.channel,
                    .capability = a.lease.capability,
                    .bytes = a.lease.num_bytes,
                    .epoch = a.lease.epoch,
                    .store_bytes = options_.block_bytes});
}

void BorrowerSide::Do(const Borrower::Use& a) {
  step_reads_.Offer(a.lease.id);
  push_(UseMessage{a.lease.id, a.lease.borrower_blocks, a.lease.donor, views_.at(a.lease.id)});
  counters_.borrowed.Increment();
  LOG(INFO) << "lease " << a.lease.id << " of " << a.lease.borrower_blocks << " blocks from " << a.lease.donor
            << " is in use";
}

// A need waits for nobody. Who says long before that the memory will go leaves the loop time to move idle blocks too.
void BorrowerSide::Do(const Borrower::Drain& a) {
  const absl::Time now = clock_.Now();
  AskSoon();
  const bool at_once = a.until - now <= options_.revoke_deadline;
  if (step_reads_.TakeOrAnnounce(a.id, at_once)) return ReleaseUnread(a.id);
  release_held_at_[a.id] = now + (a.until - now) / Departure::kDrainDivisor;  // if the loop has not begun
  push_(DrainMessage{a.id, a.until});
}

// Nobody reads it, so it is given back as if it were drained; what lies there is lost (StepReads).
void BorrowerSide::ReleaseUnread(LeaseId id) {
  transport_->SendRelease(id);
  transport_->Abandon(id);  // stores into it
  release_held_at_.erase(id);
  borrower_.Unread(id, clock_.Now());
  counters_.unread.Increment();
}

// A step that does not read it keeps the loop from saving what lies there: the donor goes before that.
void BorrowerSide::ReleaseHeld(absl::Time now) {
  for (auto it = release_held_at_.begin(); it != release_held_at_.end();) {
    const auto [id, time] = *it++;  // it may go
    if (time > now) continue;
    release_held_at_.erase(id);
    if (step_reads_.Take(id)) ReleaseUnread(id);
  }
}

void BorrowerSide::Do(const Borrower::Lose& a) {
  AskSoon();
  push_(LoseMessage{a.id});
  transport_->Abandon(a.id);  // a donor that stands still would never answer
  release_held_at_.erase(a.id);
  counters_.lost.Increment();
  LOG(WARNING) << "lease " << a.id << " is lost: " << a.why;
}

void BorrowerSide::Do(const Borrower::Close& a) {
  transport_->Close(a.id);
  views_.erase(a.id);
  release_held_at_.erase(a.id);
}

}  // namespace swiftcache::engine::coordinator
