// SPDX-License-Identifier: Apache-2.0
// A broker for engines of one process: offers what is asked for, round robin over the donors, from the tails of their
// arenas, and passes on what donors say.
//
//   LeaseHub hub;
//   hub.Join({.name = "donor", .num_blocks = 64, .block_bytes = 4096, .lends = true}, donor_coordinator);
//   coordinator.Start(&transport, &hub.BrokerOf("chat"), &loop);
//   hub.Revoke(rng());   // some lease
#pragma once

#include <unistd.h>

#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "engine/coordinator/lease_broker.h"

namespace swiftcache::engine {

/// Thread-safety: safe; events are delivered with no lock held.
class LeaseHub {
 public:
  struct Member {
    std::string name;  // and instance
    std::string channel;
    int64_t num_blocks = 0, block_bytes = 0;
    bool lends = false;
    coordinator::LeaseBrokerEvents* events = nullptr;
  };

  void Join(const Member& member) {
    absl::MutexLock lock(&mutex_);
    members_[member.name] = {member, std::make_unique<Broker>(*this, member.name), member.num_blocks};
  }
  /// Called last: nothing reaches its events any more.
  void Leave(const std::string& name) {
    absl::MutexLock lock(&mutex_);
    Entry& entry = members_.at(name);
    entry.member.lends = false;
    entry.member.events = nullptr;
    mutex_.Await(absl::Condition(
        +[](Entry* leaver) { return leaver->deliveries == 0; }, &entry));
  }
  coordinator::LeaseBroker& BrokerOf(const std::string& name) {
    absl::MutexLock lock(&mutex_);
    return *members_.at(name).broker;
  }
  /// Asks the donor of a lease to revoke it; `which` chooses. False: there is none.
  bool Revoke(uint64_t which) {
    lease::Lease lease;
    {
      absl::MutexLock lock(&mutex_);
      if (leases_.empty()) return false;
      lease = std::next(leases_.begin(), which % leases_.size())->second;
      lease.state = lease::State::kRevoking;
    }
    Tell(lease, lease.donor);
    return true;
  }
  /// While it does not lend nobody is offered anything; what is lent stays so.
  void SetLends(bool lends) {
    absl::MutexLock lock(&mutex_);
    lends_ = lends;
  }
  int64_t num_leases() const {
    absl::MutexLock lock(&mutex_);
    return static_cast<int64_t>(leases_.size());
  }
  int64_t ended() const {
    absl::MutexLock lock(&mutex_);
    return ended_;
  }

 private:
  struct Broker final : coordinator::LeaseBroker {
    Broker(LeaseHub& hub, std::string name) : hub(hub), name(std::move(name)) {}
    void RequestLease(const coordinator::LeaseRequest& request) override { hub.Request(name, request.want_bytes); }
    void RequestScaleUp(int64_t question, int64_t) override {
      hub.Deliver(name, [=](auto& events) { events.OnScaleUp(question, absl::UnavailableError("no advice")); });
    }
    void Report(const coordinator::LeaseEvent& news) override { hub.Report(news); }
    void ReportWindow(const coordinator::Window&) override {}
    LeaseHub& hub;
    const std::string name;
  };
  struct Entry {
    Member member;
    std::unique_ptr<Broker> broker;
    int64_t edge = 0;  // lowest block that was lent; falls, and starts again at the end
    int64_t deliveries = 0;
  };

  template <typename Event>
  void Deliver(const std::string& name, Event event) {
    Entry* entry = nullptr;
    coordinator::LeaseBrokerEvents* events = nullptr;
    {
      absl::MutexLock lock(&mutex_);
      entry = &members_.at(name);
      events = entry->member.events;
      if (events == nullptr) return;
      ++entry->deliveries;
    }
    event(*events);
    absl::MutexLock lock(&mutex_);
    --entry->deliveries;
  }
  void Tell(const lease::Lease& lease, const std::string& to) {
    Deliver(to, [&](coordinator::LeaseBrokerEvents& events) { events.OnLease(lease); });
  }

  void Request(const std::string& borrower, int64_t want_bytes) {
    std::vector<lease::Lease> offers;
    {
      absl::MutexLock lock(&mutex_);
      const int64_t own_bytes = members_.at(borrower).member.block_bytes;
      for (auto& [name, donor] : members_) {
        if (lends_ && name != borrower && donor.member.lends) Offer(donor, borrower, own_bytes, want_bytes, offers);
      }
    }
    for (const lease::Lease& lease : offers) Tell(lease, lease.donor);
    const coordinator::LeaseResponse answer{
        .offered_bytes = 0, .lendable_bytes = int64_t{1} << 30, .shortage = offers.empty() ? "all is lent" : ""};
    Deliver(borrower, [&](coordinator::LeaseBrokerEvents& events) { events.OnLeaseResponse(answer); });
  }

  // One extent of the donor, of about the bytes that are wanted, at the next aligned place below the last one.
  void Offer(Entry& donor, const std::string& borrower, int64_t own_bytes, int64_t want_bytes,
             std::vector<lease::Lease>& offers) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const int64_t block = donor.member.block_bytes, page = sysconf(_SC_PAGESIZE);
    const int64_t unit = std::lcm(std::lcm(block, page), own_bytes) / block;  // donor blocks
    const int64_t step = std::lcm(block, page) / block;
    const int64_t count = std::max<int64_t>(1, want_bytes / (unit * block)) * unit;
    int64_t first = (donor.edge - count) / step * step;
    if (first < donor.member.num_blocks / 4) {  // a quarter stays its own
      donor.edge = donor.member.num_blocks;
      first = (donor.edge - count) / step * step;
      if (first < donor.member.num_blocks / 4) return;
    }
    for (const auto& [id, other] : leases_) {
      if (other.donor == donor.member.name && lease::Overlap(other.extent, {first, count})) return;
    }
    donor.edge = first;
    const kv::LeaseId id(++last_id_);
    lease::Lease lease{.id = id,
                       .donor = donor.member.name,
                       .donor_instance = donor.member.name,
                       .borrower = borrower,
                       .borrower_instance = borrower,
                       .borrower_model = borrower,
                       .extent = {first, count},
                       .num_bytes = count * block,
                       .borrower_blocks = count * block / own_bytes,
                       .channel = donor.member.channel,
                       .capability = absl::StrCat("capability-", id.value())};
    leases_[id] = lease;
    offers.push_back(lease);
  }

  void Report(const coordinator::LeaseEvent& news) {
    {
      absl::MutexLock lock(&mutex_);
      const auto it = leases_.find(news.lease.id);
      if (it == leases_.end()) return;
      if (news.lease.state != lease::State::kGranted) {
        leases_.erase(it);
        ++ended_;
        return;
      }
      it->second = news.lease;
    }
    Tell(news.lease, news.lease.borrower);
  }

  mutable absl::Mutex mutex_;
  std::map<std::string, Entry> members_ ABSL_GUARDED_BY(mutex_);
  std::map<kv::LeaseId, lease::Lease> leases_ ABSL_GUARDED_BY(mutex_);
  bool lends_ ABSL_GUARDED_BY(mutex_) = true;
  int64_t last_id_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t ended_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace swiftcache::engine
