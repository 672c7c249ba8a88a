// SPDX-License-Identifier: Apache-2.0
#include "engine/coordinator/coordinator.h"

#include <pthread.h>

#include <algorithm>
#include <utility>

#include "common/log/log.h"
#include "common/sync/urgent_thread.h"

namespace swiftcache::engine::coordinator {

using kv::LeaseId;
using lease::Lease;

Coordinator::Coordinator(const Options& options, const Clock& clock, Metrics& metrics)
    : clock_(clock), donor_side_(options, clock, metrics), borrower_side_(options, clock, metrics) {}

Coordinator::~Coordinator() { Stop(absl::InfinitePast()); }

void Coordinator::Start(transport::Transport* transport, LeaseBroker* broker, std::function<void(LoopMessage)> push) {
  Attach(transport, broker, std::move(push));
  thread_ = std::thread([this] {
    pthread_setname_np(pthread_self(), "coordinator");
    if (!SetUrgent()) {
      LOG(INFO)
          << "the system allows this engine no urgent threads: on busy cores a lease may come back some milliseconds "
             "later (systemd's LimitNICE=-15 and CAP_SYS_NICE allow them)";
    }
    Run();
  });
}

void Coordinator::Attach(transport::Transport* transport, LeaseBroker* broker, std::function<void(LoopMessage)> push) {
  broker_ = broker;
  push_ = std::move(push);
  donor_side_.Start(transport, broker, push_,
                    [this](MemoryExchange::Then then) { Post([then = std::move(then)](absl::Time) { then(); }); });
  borrower_side_.Start(transport, broker, push_);
}

void Coordinator::AskBackAll(absl::Time deadline) {
  Post([=, this](absl::Time now) { donor_side_.donor().RevokeAll("the engine ends", now, deadline - now); });
}

void Coordinator::ReturnAll() {
  Post([this](absl::Time now) {
    donor_side_.donor().RevokeAll("the engine ends", now);
    borrower_side_.GiveBackAll(now);
    returns_all_ = true;
  });
}

void Coordinator::Stop(absl::Time deadline) {
  if (!thread_.joinable()) return;
  ReturnAll();
  {
    TimedMutexLock lock(&mutex_);
    mutex_.AwaitWithTimeout(absl::Condition(this, &Coordinator::AllEndedLocked), deadline - clock_.Now());
  }
  mailbox_.Close();
  thread_.join();
  donor_side_.Stop();
}

void Coordinator::Run() {
  while (!Turn(absl::InfiniteDuration())) {
  }
  donor_side_.FenceAll();
  TimedMutexLock lock(&mutex_);
  ended_ = true;
}

bool Coordinator::Turn(absl::Duration patience) {
  const bool closed = mailbox_.closed();  // read before the last take: nothing is left inside
  const absl::Duration wait = std::min(patience, NextDeadline() - clock_.Now());
  for (Message& message : mailbox_.TakeAll(std::max(absl::ZeroDuration(), wait))) {
    // A revoked lease waits for no message: not for those that lie before its release, nor for what they set going.
    donor_side_.donor().FenceOverdue(clock_.Now());
    Act();
    message(clock_.Now());
    Act();
  }
  donor_side_.Tick(clock_.Now());
  borrower_side_.Tick(clock_.Now());
  Act();
  Publish();
  donor_side_.Report(closed ? absl::InfiniteFuture() : clock_.Now());
  return closed;
}

// What one side does may give it more to do.
void Coordinator::Act() {
  while (donor_side_.Act() || borrower_side_.Act()) {
  }
}

void Coordinator::Publish() {
  donor_side_.Publish();
  TimedMutexLock lock(&mutex_);
  all_returned_ = returns_all_ && !donor_side_.any_held() && !borrower_side_.any_held();
}

// --- what others say

void Coordinator::Cleared(LeaseId id, bool ok) {
  Post([=, this](absl::Time now) { donor_side_.donor().Cleared(id, ok, now); });
}
void Coordinator::Drained(LeaseId id) {
  Post([=, this](absl::Time now) { borrower_side_.borrower().Drained(id, now); });
}
void Coordinator::Dropped(LeaseId id) {
  Post([=, this](absl::Time now) { borrower_side_.borrower().Dropped(id, now); });
}
void Coordinator::GenerationChanged(LeaseId id) {
  Post([=, this](absl::Time now) { borrower_side_.borrower().GenerationChanged(id, now); });
}
void Coordinator::StoreFailed(LeaseId id, const absl::Status& why) {
  Post([=, this](absl::Time now) { borrower_side_.borrower().StoreFailed(id, std::string(why.message()), now); });
}
void Coordinator::DonorSilent(LeaseId id) {
  Post([=, this](absl::Time now) { borrower_side_.borrower().DonorSilent(id, now); });
}
void Coordinator::GiveBack(LeaseId id) {
  Post([=, this](absl::Time now) { borrower_side_.GiveBackUnused(id, now); });
}
void Coordinator::NoteHeat(LeaseId id, int64_t heat) {
  Post([=, this](absl::Time now) { borrower_side_.borrower().NoteHeat(id, heat, now); });
}
void Coordinator::OnBorrowerOpened(LeaseId id) {
  Post([=, this](absl::Time now) { donor_side_.donor().BorrowerOpened(id, now); });
}
void Coordinator::OnRenewal(LeaseId id, int64_t heat) {
  Post([=, this](absl::Time now) { donor_side_.donor().Renewal(id, heat, now); });
}
void Coordinator::OnReleased(LeaseId id) {
  Post([=, this](absl::Time now) { donor_side_.donor().BorrowerReleased(id, now); });
}
void Coordinator::OnBorrowerGone(LeaseId id) {
  Post([=, this](absl::Time now) { donor_side_.donor().BorrowerGone(id, now); });
}
void Coordinator::OnRenewed(LeaseId id) {
  Post([=, this](absl::Time now) { borrower_side_.borrower().Renewed(id, now); });
}
void Coordinator::OnRevoked(LeaseId id, absl::Duration time_left) {
  const absl::Time heard = clock_.Now();
  Post([=, this](absl::Time now) { borrower_side_.borrower().Revoked(id, time_left - (now - heard), now); });
}
void Coordinator::OnDonorGone(LeaseId id) {
  Post([=, this](absl::Time now) { borrower_side_.borrower().DonorGone(id, now); });
}
void Coordinator::OnOpened(LeaseId id, absl::StatusOr<transport::LeaseView> view) {
  Post([=, this](absl::Time now) { borrower_side_.Opened(id, view, now); });
}
void Coordinator::OnTerms(const LeaseTerms& terms) {
  Post([=, this](absl::Time now) {
    donor_side_.donor().SetTtl(terms.ttl);
    borrower_side_.borrower().SetTtl(terms.ttl, now);
    borrower_side_.Registered();
    push_(TermsMessage{terms.scale_down_window});
  });
}
void Coordinator::OnLease(const Lease& lease) {
  Post([=, this](absl::Time now) {
    donor_side_.donor().OnLeaseUpdate(lease, now);
    borrower_side_.borrower().OnLeaseUpdate(lease, now);
  });
}
void Coordinator::OnLeases(const std::vector<Lease>& leases) {
  Post([=, this](absl::Time now) {
    donor_side_.donor().OnLeaseSnapshot(leases, now);
    for (const Lease& lease : leases) borrower_side_.borrower().OnLeaseUpdate(lease, now);
  });
}
void Coordinator::OnLeaseResponse(absl::StatusOr<LeaseResponse> answer) {
  Post([=, this](absl::Time now) { borrower_side_.Answered(answer, now); });
}
void Coordinator::OnScaleUp(int64_t question, absl::StatusOr<std::vector<LeaseId>> leases) {
  Post([=, this](absl::Time now) {
    donor_side_.Advised(question, leases.ok() ? *leases : std::vector<LeaseId>(), now);
  });
}
void Coordinator::OnWeights(const std::map<std::string, int64_t>& weights) {
  Post([=, this](absl::Time) { donor_side_.donor().SetWeights(weights); });
}
void Coordinator::OnReportRefused(const LeaseEvent& news, const absl::Status& why) {
  Post([=, this](absl::Time now) {
    donor_side_.donor().Refused(news.lease.id, std::string(why.message()), now);
    Act();
    LOG(WARNING) << "the broker refuses what was said of lease " << news.lease.id << ": " << why.message();
  });
}
void Coordinator::ReportWindow(const Window& window) {
  Post([=, this](absl::Time) { broker_->ReportWindow(window); });
}

void Coordinator::NeedBack(int64_t blocks, int64_t blocks_lent) {
  Post([=, this](absl::Time now) { donor_side_.NeedBack(blocks, blocks_lent, now); });
}
void Coordinator::WishForMemory(int64_t bytes, int64_t waiting_tokens) {
  Post([=, this](absl::Time now) { borrower_side_.Wish(bytes, waiting_tokens, now); });
}

}  // namespace swiftcache::engine::coordinator
