// SPDX-License-Identifier: Apache-2.0
// A transport that maps nothing, as NCCL maps nothing: over one that does, whose addresses it keeps to itself. It counts
// what it would have to tell donors: one control message a donor for each stream and for each batch of stores.
//
//   UnmappedTransport unmapped(coordinator);
//   auto shm = ShmTransport::Create(options, arena, clock, unmapped);
//   unmapped.Over(shm->get());
//   engine = Engine::Create(..., SharingDependencies{.transport = &unmapped, ...}, ...);
//   EXPECT_LE(unmapped.counts().streams, steps);
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "engine/transport/transport.h"

namespace swiftcache::engine::transport {

/// Thread-safety: safe. Ownership: borrows who hears, and the transport beneath.
class UnmappedTransport final : public Transport, public TransportEvents {
 public:
  struct Counts {
    int64_t streams = 0, stream_messages = 0;  // messages: at most one a donor and stream
    int64_t slices = 0;                        // of all layers
    int64_t store_batches = 0, store_messages = 0;
    int64_t loads = 0;  // beside streams
  };
  explicit UnmappedTransport(TransportEvents& heard) : heard_(heard) {}
  /// Before the first call.
  void Over(Transport* beneath) { beneath_ = beneath; }
  Counts counts() const {
    absl::MutexLock lock(&mutex_);
    return counts_;
  }

  const char* kind() const override { return "unmapped"; }
  bool maps() const override { return false; }
  std::string channel() const override { return beneath_->channel(); }
  absl::StatusOr<kv::Epoch> Grant(const GrantSpec& spec) override { return beneath_->Grant(spec); }
  void SendRevoke(kv::LeaseId lease, absl::Duration time_left) override { beneath_->SendRevoke(lease, time_left); }
  void SendRenewed(kv::LeaseId lease) override { beneath_->SendRenewed(lease); }
  void Fence(kv::LeaseId lease) override { beneath_->Fence(lease); }
  void Open(const OpenSpec& spec) override {
    {
      absl::MutexLock lock(&mutex_);
      donors_[spec.lease] = spec.channel;
    }
    beneath_->Open(spec);
  }
  void SendRenewal(kv::LeaseId lease, int64_t heat) override { beneath_->SendRenewal(lease, heat); }
  void SendRelease(kv::LeaseId lease) override { beneath_->SendRelease(lease); }
  void Abandon(kv::LeaseId lease) override {
    NoteEnded(lease);
    beneath_->Abandon(lease);
  }
  void Close(kv::LeaseId lease) override {
    beneath_->Close(lease);
    absl::MutexLock lock(&mutex_);
    words_.erase(lease);
  }
  std::vector<Ticket> Store(std::span<const StorePiece> pieces, const backend::Fence& after) override {
    {
      absl::MutexLock lock(&mutex_);
      ++counts_.store_batches;
      counts_.store_messages += DonorsOf(pieces);
    }
    return beneath_->Store(pieces, after);
  }
  Ticket Load(std::vector<LoadPiece> pieces, const backend::Fence& after) override {
    {
      absl::MutexLock lock(&mutex_);
      ++counts_.loads;
    }
    return beneath_->Load(std::move(pieces), after);
  }
  std::vector<kv::LeaseId> Await(Ticket load) override { return beneath_->Await(load); }
  std::unique_ptr<SliceStream> BeginStream(StreamSpec spec, const backend::Fence& after) override {
    {
      absl::MutexLock lock(&mutex_);
      ++counts_.streams;
      counts_.stream_messages += DonorsOf(spec.sources);
      counts_.slices += spec.num_layers * static_cast<int64_t>(spec.sources.size());
    }
    return beneath_->BeginStream(std::move(spec), after);
  }
  TransportStats stats() const override { return beneath_->stats(); }
  void Stop() override { beneath_->Stop(); }

  void OnBorrowerOpened(kv::LeaseId lease) override { heard_.OnBorrowerOpened(lease); }
  void OnRenewal(kv::LeaseId lease, int64_t heat) override { heard_.OnRenewal(lease, heat); }
  void OnReleased(kv::LeaseId lease) override { heard_.OnReleased(lease); }
  void OnBorrowerGone(kv::LeaseId lease) override { heard_.OnBorrowerGone(lease); }
  void OnOpened(kv::LeaseId lease, absl::StatusOr<LeaseView> view) override {
    if (view.ok()) {
      absl::MutexLock lock(&mutex_);
      view->base = {};
      view->word.word = (words_[lease] = std::make_unique<std::atomic<uint64_t>>(view->word.granted)).get();
    }
    heard_.OnOpened(lease, std::move(view));
  }
  void OnRenewed(kv::LeaseId lease) override { heard_.OnRenewed(lease); }
  void OnRevoked(kv::LeaseId lease, absl::Duration time_left) override { heard_.OnRevoked(lease, time_left); }
  void OnDonorGone(kv::LeaseId lease) override {
    NoteEnded(lease);
    heard_.OnDonorGone(lease);
  }
  void OnStored(Ticket ticket, absl::Status status) override { heard_.OnStored(ticket, std::move(status)); }

 private:
  void NoteEnded(kv::LeaseId lease) {
    absl::MutexLock lock(&mutex_);
    if (const auto it = words_.find(lease); it != words_.end()) ++*it->second;
  }
  // How many donors have to hear of it.
  template <typename Pieces>
  int64_t DonorsOf(const Pieces& pieces) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    std::set<std::string> donors;
    for (const auto& piece : pieces) donors.insert(donors_.at(piece.lease));
    return static_cast<int64_t>(donors.size());
  }

  TransportEvents& heard_;
  Transport* beneath_ = nullptr;
  mutable absl::Mutex mutex_;
  std::map<kv::LeaseId, std::string> donors_ ABSL_GUARDED_BY(mutex_);  // by channel
  std::map<kv::LeaseId, std::unique_ptr<std::atomic<uint64_t>>> words_ ABSL_GUARDED_BY(mutex_);
  Counts counts_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace swiftcache::engine::transport
