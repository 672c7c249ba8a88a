// SPDX-License-Identifier: Apache-2.0
#include "engine/coordinator/donor_side.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "common/log/log.h"

namespace swiftcache::engine::coordinator {

using kv::LeaseId;
using lease::Donor;
using lease::Lease;

namespace {

// What is not given back is fenced so much early: a timer is late, and a copy that the fence waits for may lose its core.
constexpr int kFenceEarlyDivisor = 8;
constexpr absl::Duration kReportsHeldBack = absl::Milliseconds(10);  // for memory that is on its way back

}  // namespace

DonorSide::Counters::Counters(Metrics& metrics)
    : granted(metrics.Counter("swiftcache_lease_granted_total", "Leases of own memory that were granted")),
      revoked(metrics.Counter("swiftcache_lease_revoked_total", "Leases of own memory that were asked back")),
      fenced(metrics.Counter("swiftcache_lease_fenced_total", "Leases of own memory taken back without the borrower")),
      late(metrics.Counter("swiftcache_lease_late_total",
                           "Leases of own memory that came back later than --revoke_deadline")),
      scale_up(metrics.Counter("swiftcache_scale_up_total", "Times that own lent memory was needed back")),
      scale_down(metrics.Counter("swiftcache_scale_down_total", "Extents of own memory given away on lease")),
      reclaim_seconds(metrics.Histogram(
          "swiftcache_reclaim_seconds",
          "From the revocation of a lease to the return of its memory; those of a donor that ends left out",
          {1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 0.01, 0.02, 0.03, 0.05, 0.06, 0.08, 0.1, 0.25, 0.5, 1})) {}

DonorSide::DonorSide(const CoordinatorOptions& options, const Clock& clock, Metrics& metrics)
    : options_(options),
      clock_(clock),
      counters_(metrics),
      donor_({.instance_id = options.instance_id,
              .num_blocks = options.num_blocks,
              .block_bytes = options.block_bytes,
              .never_lent_blocks = options.never_lent_blocks,
              .revoke_deadline = options.revoke_deadline - options.revoke_deadline / kFenceEarlyDivisor,
              .ttl = options.ttl}),
      exchange_(clock, metrics) {}

void DonorSide::Start(transport::Transport* transport, LeaseBroker* broker, std::function<void(LoopMessage)> push,
                      std::function<void(MemoryExchange::Then)> post) {
  transport_ = transport;
  broker_ = broker;
  push_ = std::move(push);
  exchange_.Start(*transport, std::move(post));
}

absl::Time DonorSide::NextDeadline() const {
  const absl::Time next = std::min(donor_.NextDeadline(), advice_deadline_);
  return news_.empty() ? next : std::min(next, report_by_);
}

void DonorSide::Tick(absl::Time now) {
  donor_.Tick(now);
  if (now >= advice_deadline_) RevokeNeeded(now);
}

void DonorSide::NeedBack(int64_t blocks, int64_t blocks_lent, absl::Time now) {
  const int64_t back_unheard = std::max<int64_t>(0, blocks_lent - donor_.blocks_on_loan());
  const int64_t needed = std::min(blocks - back_unheard, donor_.blocks_on_loan());
  donor_.Hasten(needed, now);
  if (donor_.blocks_coming_back() >= needed) return;
  const int64_t in_all = needed_blocks_ = std::max(needed_blocks_, needed);
  if (!donor_.HasChoice(in_all)) {
    donor_.NeedBack(in_all, now);
    (void)Act();  // before the call
  }
  if (advice_deadline_ != absl::InfiniteFuture()) return;
  counters_.scale_up.Increment();
  advice_deadline_ = now + options_.broker_patience;
  broker_->RequestScaleUp(++question_, in_all);
}

void DonorSide::Advised(int64_t question, const std::vector<LeaseId>& leases, absl::Time now) {
  if (question != question_ || advice_deadline_ == absl::InfiniteFuture()) return;  // too late
  if (needed_blocks_ > 0) donor_.TakeAdvised(leases, now);                          // else it is back already
  RevokeNeeded(now);
}

// What the broker's advice does not cover is taken without it: a donor's need does not wait.
void DonorSide::RevokeNeeded(absl::Time now) {
  advice_deadline_ = absl::InfiniteFuture();
  donor_.NeedBack(std::exchange(needed_blocks_, 0), now);
}

void DonorSide::Publish() {
  if (published_changes_ == donor_.accounts().changes()) return;
  published_changes_ = donor_.accounts().changes();
  std::vector<Lease> given = donor_.Given();  // copied, and what it replaces freed, without the lock
  lease::Accounts accounts = donor_.accounts();
  absl::MutexLock lock(&mutex_);
  std::swap(given_, given);
  std::swap(accounts_, accounts);
}

// What everybody is told would compete for processors with what is on its way back.
void DonorSide::Report(absl::Time now) {
  if (now < report_by_ && donor_.revoking()) return;  // revoking looks at all leases
  for (const LeaseEvent& news : std::exchange(news_, {})) broker_->Report(news);
}

void DonorSide::FenceAll() {
  for (const Lease& lease : donor_.Held()) transport_->Fence(lease.id);
}

// --- what is to be done

bool DonorSide::Act() {
  const std::vector<Donor::Action> actions = donor_.TakeActions();
  for (const Donor::Action& action : actions) std::visit([this](const auto& a) { Do(a); }, action);
  return !actions.empty();
}

MemoryExchange::Part DonorSide::PartOf(const lease::Extent& extent) const {
  return {extent.first_block * options_.block_bytes, extent.num_blocks * options_.block_bytes};
}

void DonorSide::Do(const Donor::Grant& a) {
  exchange_.Prepare(PartOf(a.lease.extent), [=, this](const absl::Status& ready) { HandOut(a.lease, ready); });
}

void DonorSide::Do(const Donor::StopGranting& a) { exchange_.Forgo(PartOf(a.lease.extent)); }

// The answer comes at once: there is no peer in it.
void DonorSide::HandOut(const Lease& lease, const absl::Status& ready) {
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

void DonorSide::Do(const Donor::SendRevoke& a) {
  transport_->SendRevoke(a.id, a.time_left);
  if (!a.again) counters_.revoked.Increment();
}

void DonorSide::Do(const Donor::TakeBack& a) {
  needed_blocks_ = std::max<int64_t>(0, needed_blocks_ - a.extent.num_blocks);
  exchange_.Return(
      a.id, PartOf(a.extent),
      [=, this] {
        push_(WithheldMessage{a.id, a.extent});
      },
      [=, this] { TakeBack(a); });
}

void DonorSide::TakeBack(const Donor::TakeBack& a) {
  const absl::Time now = clock_.Now();  // after its fence, those before it in this batch, and the exchange
  const absl::Duration after_revoke = std::max(absl::ZeroDuration(), now - a.revoked_at);
  push_(TakeBackMessage{a.id, a.extent, now});
  if (a.fenced) counters_.fenced.Increment();
  if (now - a.deadline > options_.revoke_deadline / kFenceEarlyDivisor) counters_.late.Increment();
  if (a.revoked_at < absl::InfiniteFuture() && !a.shutdown) {
    counters_.reclaim_seconds.Observe(absl::ToDoubleSeconds(after_revoke));
    absl::MutexLock lock(&mutex_);
    reclaims_ = {reclaims_.count + 1, after_revoke};
  }
  LOG(INFO) << "lease " << a.id << (a.fenced ? " was fenced" : " came back") << ": " << a.extent.num_blocks
            << " blocks from " << a.extent.first_block << ", " << after_revoke << " after it was asked back";
}

// Who hears that a lease has ended may offer its memory again.
void DonorSide::Do(const Donor::Say& a) {
  exchange_.WhenBack(a.lease.id, [=, this] {
    if (news_.empty()) report_by_ = clock_.Now() + (donor_.revoking() ? kReportsHeldBack : absl::ZeroDuration());
    news_.push_back({.lease = a.lease, .reason = a.why});
  });
}

}  // namespace swiftcache::engine::coordinator
