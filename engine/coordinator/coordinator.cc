// SPDX-License-Identifier: Apache-2.0
#include "engine/coordinator/coordinator.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "common/log/log.h"

namespace swiftcache::engine::coordinator {

using kv::LeaseId;
using lease::Borrower;
using lease::Donor;
using lease::Lease;

namespace {

// What is not given back is fenced so much early: a timer is late, and a copy that the fence waits for may lose its core.
constexpr int kFenceEarlyDivisor = 8;
constexpr int kHeldDivisor = 2;  // the loop has this part of a drain's time to begin it
constexpr absl::Duration kReportsHeldBack = absl::Milliseconds(10);  // for memory that is on its way back
constexpr absl::Duration kUnhurried = absl::Seconds(1);  // a drain that nobody waits for: a step may come before it

}  // namespace

Coordinator::Counters::Counters(Metrics& metrics)
    : granted(metrics.Counter("swiftcache_lease_granted_total", "Leases of own memory that were granted")),
      revoked(metrics.Counter("swiftcache_lease_revoked_total", "Leases of own memory that were asked back")),
      fenced(metrics.Counter("swiftcache_lease_fenced_total", "Leases of own memory taken back without the borrower")),
      late(metrics.Counter("swiftcache_lease_late_total",
                           "Leases of own memory that came back later than --revoke_deadline")),
      borrowed(metrics.Counter("swiftcache_lease_borrowed_total", "Leases of others' memory that came into use")),
      unread(metrics.Counter("swiftcache_lease_unread_total",
                             "Leases of others' memory given back at once, since no step read them")),
      lost(metrics.Counter("swiftcache_lease_lost_total", "Leases of others' memory lost with what they held")),
      given_back(metrics.Counter("swiftcache_lease_given_back_total",
                                 "Leases of others' memory given back as nobody used them")),
      scale_up(metrics.Counter("swiftcache_scale_up_total", "Times that own lent memory was needed back")),
      scale_down(metrics.Counter("swiftcache_scale_down_total", "Extents of own memory given away on lease")),
      reclaim_seconds(metrics.Histogram(
          "swiftcache_reclaim_seconds", "From the revocation of a lease to its end",
          {1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 0.01, 0.02, 0.03, 0.05, 0.06, 0.08, 0.1, 0.25, 0.5, 1})) {}

Coordinator::Coordinator(const Options& options, const Clock& clock, Metrics& metrics)
    : options_(options),
      clock_(clock),
      counters_(metrics),
      donor_({.instance_id = options.instance_id,
              .num_blocks = options.num_blocks,
              .block_bytes = options.block_bytes,
              .never_lent_blocks = options.never_lent_blocks,
              .revoke_deadline = options.revoke_deadline - options.revoke_deadline / kFenceEarlyDivisor,
              .ttl = options.ttl}),
      borrower_({.instance_id = options.instance_id,
                 .block_bytes = options.block_bytes,
                 .ttl = options.ttl,
                 .drain = options.revoke_deadline}),
      exchange_(clock, metrics),
      request_interval_(options.min_request_interval) {}

Coordinator::~Coordinator() { Stop(absl::InfinitePast()); }

void Coordinator::Start(transport::Transport* transport, LeaseBroker* broker, std::function<void(LoopMessage)> push) {
  transport_ = transport;
  broker_ = broker;
  push_ = std::move(push);
  exchange_.Start(*transport,
                  [this](MemoryExchange::Then then) { Post([then = std::move(then)](absl::Time) { then(); }); });
  thread_ = std::thread([this] { Run(); });
}

void Coordinator::AskBackAll(absl::Time deadline) {
  Post([=, this](absl::Time now) { donor_.RevokeAll("the engine ends", now, deadline - now); });
}

void Coordinator::Stop(absl::Time deadline) {
  if (!thread_.joinable()) return;
  Post([this](absl::Time now) {
    wished_bytes_ = 0;
    donor_.RevokeAll("the engine ends", now);
    for (const Lease& lease : borrower_.Held()) borrower_.GiveBack(lease.id, options_.revoke_deadline, now);
  });
  {
    absl::MutexLock lock(&mutex_);
    mutex_.AwaitWithTimeout(absl::Condition(this, &Coordinator::AllEndedLocked), deadline - clock_.Now());
  }
  mailbox_.Close();
  thread_.join();
  exchange_.Stop();
}

void Coordinator::Run() {
  bool closed = false;
  while (!closed) {
    closed = mailbox_.closed();  // read before the last take: nothing is left inside
    const absl::Duration wait = std::max(absl::ZeroDuration(), NextDeadline() - clock_.Now());
    for (Message& message : mailbox_.TakeAll(wait)) {
      // A revoked lease waits for no message: not for those that lie before its release, nor for what they set going.
      donor_.FenceOverdue(clock_.Now());
      Act(clock_.Now());
      message(clock_.Now());
      Act(clock_.Now());
    }
    Tick(clock_.Now());
    Act(clock_.Now());
    Publish();
    // After Publish: a registration between a report and what it tells of would leave the lease out. And after what is
    // on its way back: what everybody is told of it would compete with it for processors.
    if (donor_.revoking() && !closed && clock_.Now() < report_by_) continue;
    for (const LeaseEvent& news : std::exchange(news_, {})) broker_->Report(news);
  }
  for (const Lease& lease : donor_.Held()) transport_->Fence(lease.id);
  absl::MutexLock lock(&mutex_);
  ended_ = true;
}

absl::Time Coordinator::NextDeadline() const {
  absl::Time next = std::min({donor_.NextDeadline(), borrower_.NextDeadline(), advice_deadline_});
  for (const auto& [id, time] : release_held_at_) next = std::min(next, time);
  if (wished_bytes_ > 0 && !request_under_way_) next = std::min(next, next_request_);
  if (!news_.empty()) next = std::min(next, report_by_);
  return next;
}

void Coordinator::Tick(absl::Time now) {
  donor_.Tick(now);
  ReleaseHeld(now);
  borrower_.Tick(now);
  if (now >= advice_deadline_) RevokeNeeded(now);
  MaybeRequest(now);
}

// --- what others say

void Coordinator::Cleared(LeaseId id, bool ok) {
  Post([=, this](absl::Time now) { donor_.Cleared(id, ok, now); });
}
void Coordinator::Drained(LeaseId id) {
  Post([=, this](absl::Time now) { borrower_.Drained(id, now); });
}
void Coordinator::Dropped(LeaseId id) {
  Post([=, this](absl::Time now) { borrower_.Dropped(id, now); });
}
void Coordinator::GenerationChanged(LeaseId id) {
  Post([=, this](absl::Time now) { borrower_.GenerationChanged(id, now); });
}
void Coordinator::StoreFailed(LeaseId id, const absl::Status& why) {
  Post([=, this](absl::Time now) { borrower_.StoreFailed(id, std::string(why.message()), now); });
}
void Coordinator::DonorSilent(LeaseId id) {
  Post([=, this](absl::Time now) { borrower_.DonorSilent(id, now); });
}
void Coordinator::GiveBack(LeaseId id) {
  Post([=, this](absl::Time now) {
    counters_.given_back.Increment();
    borrower_.GiveBack(id, kUnhurried, now);
  });
}
void Coordinator::OnBorrowerOpened(LeaseId id) {
  Post([=, this](absl::Time now) { donor_.BorrowerOpened(id, now); });
}
void Coordinator::OnRenewal(LeaseId id) {
  Post([=, this](absl::Time now) { donor_.Renewal(id, now); });
}
void Coordinator::OnReleased(LeaseId id) {
  Post([=, this](absl::Time now) { donor_.BorrowerReleased(id, now); });
}
void Coordinator::OnBorrowerGone(LeaseId id) {
  Post([=, this](absl::Time now) { donor_.BorrowerGone(id, now); });
}
void Coordinator::OnRenewed(LeaseId id) {
  Post([=, this](absl::Time now) { borrower_.Renewed(id, now); });
}
void Coordinator::OnRevoked(LeaseId id, absl::Duration time_left) {
  const absl::Time heard = clock_.Now();
  Post([=, this](absl::Time now) { borrower_.Revoked(id, time_left - (now - heard), now); });
}
void Coordinator::OnDonorGone(LeaseId id) {
  Post([=, this](absl::Time now) { borrower_.DonorGone(id, now); });
}
void Coordinator::OnOpened(LeaseId id, absl::StatusOr<transport::LeaseView> view) {
  Post([=, this](absl::Time now) { HandleOpened(id, view, now); });
}
void Coordinator::OnTerms(const LeaseTerms& terms) {
  Post([=, this](absl::Time now) {
    donor_.SetTtl(terms.ttl);
    borrower_.SetTtl(terms.ttl, now);
    push_(TermsMessage{terms.scale_down_window});
  });
}
void Coordinator::OnLease(const Lease& lease) {
  Post([=, this](absl::Time now) {
    donor_.OnLeaseUpdate(lease, now);
    borrower_.OnLeaseUpdate(lease, now);
  });
}
void Coordinator::OnLeases(const std::vector<Lease>& leases) {
  Post([=, this](absl::Time now) {
    donor_.OnLeaseSnapshot(leases, now);
    for (const Lease& lease : leases) borrower_.OnLeaseUpdate(lease, now);
  });
}
void Coordinator::OnLeaseResponse(absl::StatusOr<LeaseResponse> answer) {
  Post([=, this](absl::Time now) { HandleLeaseResponse(answer, now); });
}
void Coordinator::OnScaleUp(absl::StatusOr<std::vector<LeaseId>> leases) {
  Post([=, this](absl::Time now) { HandleScaleUp(leases.ok() ? *leases : std::vector<LeaseId>(), now); });
}
void Coordinator::OnReportRefused(const LeaseEvent& news, const absl::Status& why) {
  Post([=, this](absl::Time now) {
    donor_.Refused(news.lease.id, std::string(why.message()), now);
    Act(now);
    LOG(WARNING) << "the broker refuses what was said of lease " << news.lease.id << ": " << why.message();
  });
}
void Coordinator::ReportWindow(const Window& window) {
  Post([=, this](absl::Time) { broker_->ReportWindow(window); });
}

void Coordinator::HandleOpened(LeaseId id, absl::StatusOr<transport::LeaseView> view, absl::Time now) {
  const auto open = views_.find(id);
  if (view.ok() && open != views_.end()) open->second = *view;  // else it was closed meanwhile
  borrower_.Opened(id, view.ok(), now);
  if (!view.ok()) LOG(WARNING) << "lease " << id << " could not be opened: " << view.status();
}

// --- memory of our own that is needed back

void Coordinator::NeedBack(int64_t blocks, int64_t blocks_lent) {
  Post([=, this](absl::Time now) {
    donor_.Hasten(now);
    const int64_t back_unheard = std::max<int64_t>(0, blocks_lent - donor_.blocks_on_loan());
    const int64_t needed = std::min(blocks - back_unheard, donor_.blocks_on_loan());
    if (donor_.blocks_coming_back() >= needed) return;
    needed_blocks_ = std::max(needed_blocks_, needed);
    if (advice_deadline_ == absl::InfiniteFuture()) {
      counters_.scale_up.Increment();
      advice_deadline_ = now + options_.broker_patience;
      broker_->RequestScaleUp(needed_blocks_);
    }
    if (!donor_.HasChoice(needed_blocks_)) donor_.NeedBack(needed_blocks_, now);
  });
}

void Coordinator::HandleScaleUp(const std::vector<LeaseId>& leases, absl::Time now) {
  if (advice_deadline_ == absl::InfiniteFuture()) return;  // too late
  if (needed_blocks_ > 0) {                                // else it is back already
    for (const LeaseId id : leases) donor_.Revoke(id, "its donor needs the memory", now, lease::Ending::kNeed);
  }
  RevokeNeeded(now);
}

// What the broker's advice does not cover is taken without it: a donor's need does not wait.
void Coordinator::RevokeNeeded(absl::Time now) {
  advice_deadline_ = absl::InfiniteFuture();
  donor_.NeedBack(std::exchange(needed_blocks_, 0), now);
}

// --- memory of others that would be of use

void Coordinator::WishForMemory(int64_t bytes, int64_t waiting_tokens) {
  Post([=, this](absl::Time now) {
    wished_bytes_ = bytes;
    waiting_tokens_ = waiting_tokens;
    MaybeRequest(now);
  });
}

void Coordinator::MaybeRequest(absl::Time now) {
  if (wished_bytes_ <= 0 || request_under_way_ || now < next_request_) return;
  request_under_way_ = true;
  next_request_ = now + request_interval_;
  int64_t held_bytes = 0;
  for (const Lease& lease : borrower_.Held()) held_bytes += lease.num_bytes;
  broker_->RequestLease({.key = absl::StrCat(responses_ + 1),
                         .want_bytes = std::exchange(wished_bytes_, 0),
                         .waiting_tokens = waiting_tokens_,
                         .held_bytes = held_bytes});
}

void Coordinator::HandleLeaseResponse(const absl::StatusOr<LeaseResponse>& answer, absl::Time now) {
  request_under_way_ = false;
  if (answer.ok()) ++responses_;  // else the broker may have granted it: the next attempt is the same request
  const bool short_of = !answer.ok() || !answer->shortage.empty();
  request_interval_ =
      short_of ? std::min(2 * request_interval_, options_.max_request_interval) : options_.min_request_interval;
  next_request_ = now + request_interval_;
  if (answer.ok()) push_(LendableMessage{answer->lendable_bytes + answer->offered_bytes, answer->shortage});
}

// --- what is to be done

void Coordinator::Act(absl::Time now) {
  for (bool done = false; !done;) {
    done = true;
    for (const Donor::Action& action : donor_.TakeActions()) {
      std::visit([this](const auto& a) { Do(a); }, action);
      done = false;
    }
    for (const Borrower::Action& action : borrower_.TakeActions()) {
      std::visit([this](const auto& a) { Do(a); }, action);
      done = false;
    }
  }
}

void Coordinator::Publish() {
  const bool none_held = !donor_.any_held() && !borrower_.any_held() && !exchange_.any_returning();
  absl::MutexLock lock(&mutex_);
  none_held_ = none_held;
  if (accounts_.changes() == donor_.accounts().changes()) return;
  given_ = donor_.Given();
  accounts_ = donor_.accounts();
}

std::vector<Lease> Coordinator::Given() const {
  absl::MutexLock lock(&mutex_);
  return given_;
}

void Coordinator::Do(const Donor::ClearExtent& a) { push_(ClearMessage{a.lease.id, a.lease.extent}); }

MemoryExchange::Part Coordinator::PartOf(const lease::Extent& extent) const {
  return {extent.first_block * options_.block_bytes, extent.num_blocks * options_.block_bytes};
}

void Coordinator::Do(const Donor::Grant& a) {
  exchange_.Prepare(PartOf(a.lease.extent), [=, this](const absl::Status& ready) { HandOut(a.lease, ready); });
}

// The answer comes at once: there is no peer in it.
void Coordinator::HandOut(const Lease& lease, const absl::Status& ready) {
  if (!ready.ok()) return donor_.GrantFailed(lease.id, std::string(ready.message()), clock_.Now());
  const absl::StatusOr<kv::Epoch> epoch = transport_->Grant({.lease = lease.id,
                                                             .offset_bytes = PartOf(lease.extent).offset_bytes,
                                                             .bytes = lease.num_bytes,
                                                             .borrower_instance = lease.borrower_instance,
                                                             .capability = lease.capability});
  if (epoch.ok()) {
    counters_.granted.Increment();
    counters_.scale_down.Increment();
    donor_.Granted(lease.id, *epoch, clock_.Now());
  } else {
    donor_.GrantFailed(lease.id, std::string(epoch.status().message()), clock_.Now());
  }
}

void Coordinator::Do(const Donor::SendRevoke& a) {
  transport_->SendRevoke(a.id, a.time_left);
  counters_.revoked.Increment();
}

void Coordinator::Do(const Donor::TakeBack& a) {
  needed_blocks_ = std::max<int64_t>(0, needed_blocks_ - a.extent.num_blocks);
  const absl::Time ended = clock_.Now();
  exchange_.Return(a.id, PartOf(a.extent), [=, this] {
    Donor::TakeBack back = a;
    if (a.after_revoke > absl::ZeroDuration()) back.after_revoke += clock_.Now() - ended;
    TakeBack(back);
  });
}

void Coordinator::TakeBack(const Donor::TakeBack& a) {
  push_(TakeBackMessage{a.id, a.extent, clock_.Now()});
  if (a.fenced) counters_.fenced.Increment();
  if (a.after_revoke > absl::ZeroDuration()) {
    counters_.reclaim_seconds.Observe(absl::ToDoubleSeconds(a.after_revoke));
    if (clock_.Now() - a.deadline > options_.revoke_deadline / kFenceEarlyDivisor) counters_.late.Increment();
    absl::MutexLock lock(&mutex_);
    reclaims_ = {reclaims_.count + 1, a.after_revoke};
  }
  LOG(INFO) << "lease " << a.id << (a.fenced ? " was fenced" : " came back") << ": " << a.extent.num_blocks
            << " blocks from " << a.extent.first_block << ", " << a.after_revoke << " after it was asked back";
}

// Who hears that a lease has ended may offer its memory again.
void Coordinator::Do(const Donor::Say& a) {
  exchange_.WhenBack(a.lease.id, [=, this] {
    if (news_.empty()) report_by_ = clock_.Now() + (donor_.revoking() ? kReportsHeldBack : absl::ZeroDuration());
    news_.push_back({.lease = a.lease, .reason = a.why});
  });
}

void Coordinator::Do(const Borrower::Open& a) {
  views_.emplace(a.lease.id, transport::LeaseView());
  transport_->Open({.lease = a.lease.id,
                    .channel = a.lease.channel,
                    .capability = a.lease.capability,
                    .bytes = a.lease.num_bytes,
                    .epoch = a.lease.epoch,
                    .store_bytes = options_.block_bytes});
}

void Coordinator::Do(const Borrower::Use& a) {
  step_reads_.Offer(a.lease.id);
  push_(UseMessage{a.lease.id, a.lease.borrower_blocks, a.lease.donor, views_.at(a.lease.id)});
  counters_.borrowed.Increment();
  LOG(INFO) << "lease " << a.lease.id << " of " << a.lease.borrower_blocks << " blocks from " << a.lease.donor
            << " is in use";
}

// A need waits for nobody. Who says long before that the memory will go leaves the loop time to move idle blocks too.
void Coordinator::Do(const Borrower::Drain& a) {
  const absl::Time now = clock_.Now();
  const bool at_once = a.until - now <= options_.revoke_deadline;
  if (step_reads_.TakeOrAnnounce(a.id, at_once)) return ReleaseUnread(a.id);
  release_held_at_[a.id] = now + (a.until - now) / kHeldDivisor;
  push_(DrainMessage{a.id, a.until});
}

// Nobody reads it, so it is given back as if it were drained; what lies there is lost (StepReads).
void Coordinator::ReleaseUnread(LeaseId id) {
  transport_->SendRelease(id);
  transport_->Abandon(id);  // stores into it
  release_held_at_.erase(id);
  borrower_.Unread(id, clock_.Now());
  counters_.unread.Increment();
}

// A step that does not read it keeps the loop from saving what others have there: the donor goes before that.
void Coordinator::ReleaseHeld(absl::Time now) {
  for (auto it = release_held_at_.begin(); it != release_held_at_.end();) {
    const auto [id, time] = *it++;  // it may go
    if (time > now) continue;
    release_held_at_.erase(id);
    if (step_reads_.Take(id)) ReleaseUnread(id);
  }
}

void Coordinator::Do(const Borrower::Lose& a) {
  push_(LoseMessage{a.id});
  transport_->Abandon(a.id);  // a donor that stands still would never answer
  release_held_at_.erase(a.id);
  counters_.lost.Increment();
  LOG(WARNING) << "lease " << a.id << " is lost: " << a.why;
}

void Coordinator::Do(const Borrower::Close& a) {
  transport_->Close(a.id);
  views_.erase(a.id);
  release_held_at_.erase(a.id);
}

}  // namespace swiftcache::engine::coordinator
