// SPDX-License-Identifier: Apache-2.0
// A transport without a far end: writes down what it is asked, and holds the memory of leases that tests play donor
// of.
//
//   FakeTransport transport;
//   LeaseView view = transport.AddLease(lease, bytes, epoch);     // memory of a donor
//   ASSERT_TRUE(transport.log().WaitFor("Fence 7"));              // what somebody else's thread asks for
//   transport.Land(transport.stores().back());                    // the donor copies it in; the test says OnStored
//   transport.TellReaders(false);                                 // plants a bug: a Fence goes unnoticed
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "engine/transport/transport.h"
#include "tests/fakes/call_log.h"

namespace swiftcache::engine::transport {

/// Loads are copied when they are awaited: as late as can be. Thread-safety: safe; hooks are set before the first call.
class FakeTransport final : public Transport {
 public:
  struct PendingStore {
    Ticket ticket;
    kv::LeaseId lease;
    int64_t offset_bytes = 0;
    const std::byte* from = nullptr;
    int64_t bytes = 0;
  };

  std::function<absl::Status(const GrantSpec&)> on_grant;
  std::function<void()> on_await;

  LeaseView AddLease(kv::LeaseId lease, int64_t bytes, kv::Epoch epoch) {
    absl::MutexLock lock(&mutex_);
    auto far = std::make_unique<Far>();
    far->memory.resize(bytes);
    far->generation = epoch.value();
    far->told = epoch.value();
    far->epoch = epoch;
    const LeaseView view{.base = far->memory.data(), .bytes = bytes, .generation = &far->told, .epoch = epoch};
    leases_[lease] = std::move(far);
    return view;
  }
  std::byte* Memory(kv::LeaseId lease) {
    absl::MutexLock lock(&mutex_);
    return leases_.at(lease)->memory.data();
  }
  /// What its donor does when he fences it; garbage is there from now on.
  void Fence(kv::LeaseId lease) override {
    log_.Add(absl::StrCat("Fence ", lease.value()));
    absl::MutexLock lock(&mutex_);
    const auto it = leases_.find(lease);
    if (it == leases_.end()) return;
    ++it->second->generation;
    if (tells_) it->second->told = it->second->generation;
    std::fill(it->second->memory.begin(), it->second->memory.end(), std::byte{0xEE});
  }
  /// False, and until it is true: views and loads say of every lease that it is what was granted.
  void TellReaders(bool tell) {
    absl::MutexLock lock(&mutex_);
    tells_ = tell;
    for (auto& [id, far] : leases_) far->told = tell ? far->generation : far->epoch.value();
  }
  void Land(const PendingStore& store) {
    std::memcpy(Memory(store.lease) + store.offset_bytes, store.from, store.bytes);
  }
  void SetStats(const TransportStats& stats) {
    absl::MutexLock lock(&mutex_);
    stats_ = stats;
  }

  const CallLog& log() const { return log_; }
  std::vector<PendingStore> stores() const {
    absl::MutexLock lock(&mutex_);
    return stores_;
  }
  /// Those since the last call.
  std::vector<PendingStore> TakeStores() {
    absl::MutexLock lock(&mutex_);
    return std::exchange(stores_, {});
  }
  int64_t loads_under_way() const {
    absl::MutexLock lock(&mutex_);
    return static_cast<int64_t>(loads_.size());
  }
  const char* kind() const override { return "fake"; }
  std::string channel() const override { return "fake-channel"; }
  absl::StatusOr<kv::Epoch> Grant(const GrantSpec& spec) override {
    log_.Add(absl::StrCat("Grant ", spec.lease.value()));
    if (const absl::Status status = on_grant ? on_grant(spec) : absl::OkStatus(); !status.ok()) return status;
    absl::MutexLock lock(&mutex_);
    return kv::Epoch(++last_epoch_);
  }
  void SendRevoke(kv::LeaseId lease, absl::Duration) override { log_.Add(absl::StrCat("SendRevoke ", lease.value())); }
  void SendRenewed(kv::LeaseId lease) override { log_.Add(absl::StrCat("SendRenewed ", lease.value())); }
  void Open(const OpenSpec& spec) override { log_.Add(absl::StrCat("Open ", spec.lease.value())); }
  void SendRenewal(kv::LeaseId lease) override { log_.Add(absl::StrCat("SendRenewal ", lease.value())); }
  void SendRelease(kv::LeaseId lease) override { log_.Add(absl::StrCat("SendRelease ", lease.value())); }
  void Abandon(kv::LeaseId lease) override { log_.Add(absl::StrCat("Abandon ", lease.value())); }
  /// Who reads it from now on reads what was never written, and no generation tells him.
  void Close(kv::LeaseId lease) override {
    log_.Add(absl::StrCat("Close ", lease.value()));
    absl::MutexLock lock(&mutex_);
    const auto it = leases_.find(lease);
    if (it != leases_.end()) std::fill(it->second->memory.begin(), it->second->memory.end(), std::byte{0xDD});
  }
  Ticket Store(kv::LeaseId lease, int64_t offset_bytes, const std::byte* from, int64_t bytes) override {
    absl::MutexLock lock(&mutex_);
    stores_.push_back({Ticket(++last_ticket_), lease, offset_bytes, from, bytes});
    return stores_.back().ticket;
  }
  Ticket Load(std::vector<LoadPiece> pieces) override {
    absl::MutexLock lock(&mutex_);
    const Ticket ticket(++last_ticket_);
    loads_[ticket] = std::move(pieces);
    return ticket;
  }
  std::vector<kv::LeaseId> Await(Ticket ticket) override {
    if (on_await) on_await();
    absl::MutexLock lock(&mutex_);
    const std::vector<LoadPiece> pieces = std::move(loads_.extract(ticket).mapped());
    std::vector<kv::LeaseId> lost;
    for (const LoadPiece& piece : pieces) {
      const auto it = leases_.find(piece.lease);
      const bool good = it != leases_.end() && it->second->told == it->second->epoch.value();
      if (it != leases_.end()) std::memcpy(piece.to, it->second->memory.data() + piece.offset_bytes, piece.bytes);
      if (!good && std::find(lost.begin(), lost.end(), piece.lease) == lost.end()) lost.push_back(piece.lease);
    }
    return lost;
  }
  TransportStats stats() const override {
    absl::MutexLock lock(&mutex_);
    return stats_;
  }

 private:
  struct Far {
    std::vector<std::byte> memory;
    uint64_t generation = 0;
    std::atomic<uint64_t> told{0};  // as readers see it
    kv::Epoch epoch;
  };
  CallLog log_;
  mutable absl::Mutex mutex_;
  std::map<kv::LeaseId, std::unique_ptr<Far>> leases_ ABSL_GUARDED_BY(mutex_);
  std::map<Ticket, std::vector<LoadPiece>> loads_ ABSL_GUARDED_BY(mutex_);
  std::vector<PendingStore> stores_ ABSL_GUARDED_BY(mutex_);
  TransportStats stats_ ABSL_GUARDED_BY(mutex_);
  bool tells_ ABSL_GUARDED_BY(mutex_) = true;
  int64_t last_ticket_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t last_epoch_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace swiftcache::engine::transport
