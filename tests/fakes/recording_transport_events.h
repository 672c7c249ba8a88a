// SPDX-License-Identifier: Apache-2.0
// Hears a transport's events, and lets a test wait for them.
//
//   RecordingTransportEvents events;
//   ASSERT_TRUE(events.WaitFor([&] { return events.gone.contains(lease); }));
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "engine/transport/transport.h"
#include "tests/fakes/gate.h"

namespace swiftcache::engine::transport {

/// Thread-safety: the members are read inside WaitFor, or after the transport has stopped.
class RecordingTransportEvents final : public TransportEvents {
 public:
  static constexpr absl::Duration kPatience = absl::Seconds(20);

  void OnBorrowerOpened(kv::LeaseId lease) override {
    borrower_opens.Pass();
    Note([&] { borrower_opened.insert(lease); });
  }
  void OnRenewal(kv::LeaseId lease, int64_t heat) override {
    Note([&] { ++renewals[lease], heats[lease] = heat; });
  }
  void OnReleased(kv::LeaseId lease) override {
    Note([&] { released.insert(lease); });
  }
  void OnBorrowerGone(kv::LeaseId lease) override {
    Note([&] { borrower_gone.insert(lease); });
  }
  void OnOpened(kv::LeaseId lease, absl::StatusOr<LeaseView> view) override {
    Note([&] { opened.emplace(lease, std::move(view)); });
  }
  void OnRenewed(kv::LeaseId lease) override {
    Note([&] { ++renewed[lease]; });
  }
  void OnRevoked(kv::LeaseId lease, absl::Duration time_left) override {
    Note([&] { revoked[lease] = time_left; });
  }
  void OnDonorGone(kv::LeaseId lease) override {
    Note([&] { donor_gone.insert(lease); });
  }
  void OnStored(Ticket ticket, absl::Status status) override {
    Note([&] { stored.emplace_back(ticket, status); });
  }

  /// REQUIRES: `condition` changes nothing: it may be asked any number of times.
  bool WaitFor(const std::function<bool()>& condition) {
    absl::MutexLock lock(&mutex_);
    return mutex_.AwaitWithTimeout(absl::Condition(&Evaluate, &condition), kPatience);
  }
  /// What was answered to this store; waits for it.
  absl::Status Fate(Ticket ticket) {
    const auto find = [&] {
      return std::find_if(stored.begin(), stored.end(), [&](const auto& entry) { return entry.first == ticket; });
    };
    if (!WaitFor([&] { return find() != stored.end(); })) return absl::DeadlineExceededError("no answer");
    absl::MutexLock lock(&mutex_);
    return find()->second;
  }
  /// What came of opening the lease; waits for it, and forgets it.
  absl::StatusOr<LeaseView> Opening(kv::LeaseId lease) {
    if (!WaitFor([&] { return opened.contains(lease); })) return absl::DeadlineExceededError("no answer");
    absl::MutexLock lock(&mutex_);
    return std::move(opened.extract(lease).mapped());
  }
  /// While what it returns lives, nothing is heard: who calls an event waits.
  std::unique_ptr<absl::MutexLock> Hold() { return std::make_unique<absl::MutexLock>(&mutex_); }
  size_t num_stored() {
    absl::MutexLock lock(&mutex_);
    return stored.size();
  }
  void ForgetStored() {
    absl::MutexLock lock(&mutex_);
    stored.clear();
  }

  Gate borrower_opens;  // in OnBorrowerOpened
  std::set<kv::LeaseId> borrower_opened, released, borrower_gone, donor_gone;
  std::map<kv::LeaseId, int> renewals, renewed;
  std::map<kv::LeaseId, int64_t> heats;
  std::map<kv::LeaseId, absl::StatusOr<LeaseView>> opened;
  std::map<kv::LeaseId, absl::Duration> revoked;
  std::vector<std::pair<Ticket, absl::Status>> stored;

 private:
  template <typename Change>
  void Note(Change change) {
    absl::MutexLock lock(&mutex_);
    change();
  }
  static bool Evaluate(const std::function<bool()>* condition) { return (*condition)(); }

  absl::Mutex mutex_;
};

}  // namespace swiftcache::engine::transport
