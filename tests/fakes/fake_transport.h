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
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "engine/backend/address_space.h"
#include "engine/transport/transport.h"
#include "tests/fakes/call_log.h"

namespace swiftcache::engine::transport {

/// Loads and streams are copied as late as can be, when somebody waits for them, or as early (is_prompt).
/// Thread-safety: safe; hooks are set before the first call.
class FakeTransport final : public Transport {
 public:
  struct PendingStore {
    Ticket ticket;
    kv::LeaseId lease;
    int64_t offset_bytes = 0;
    backend::DeviceAddress from;
    int64_t bytes = 0;
    backend::Fence after;
  };

  /// What its addresses mean. Set before the first call.
  backend::AddressSpace space = {};
  std::function<absl::Status(const GrantSpec&)> on_grant;
  std::function<void(kv::LeaseId)> on_fence;
  std::function<void()> on_await;
  /// Where it is set before the first call, leases have memory of their own, which this has for Exchange, or not.
  std::function<absl::Status(int64_t offset_bytes, int64_t bytes)> on_exchange;
  std::function<absl::Status()> on_prepare;
  /// False: what lies in leases can be had by loads and streams alone. Set before the first lease.
  bool mapped = true;
  /// Called where a load or a stream waits for a donor that does not answer: returns when its patience ends, or the lease
  /// was abandoned.
  std::function<void(kv::LeaseId)> on_silence;
  /// Asked at each load and each stream, where set: true: it is copied as soon as it may be, before the call returns.
  std::function<bool()> is_prompt;
  /// Plants a bug: slots are written again before their reader is done.
  bool early_slots = false;
  /// Plants a bug: who gets a slot where a first layer came for the next step reads that, whichever block's it was.
  bool keeps_any_first = false;

  /// Whether views say of slow links that they are. Set before the first call.
  bool measures = false;
  /// Of one stream. Set before the first call.
  int64_t most_streamed = std::numeric_limits<int64_t>::max();

  LeaseView AddLease(kv::LeaseId lease, int64_t bytes, kv::Epoch epoch, bool slow_link = false) {
    absl::MutexLock lock(&mutex_);
    auto far = std::make_unique<Far>();
    far->memory.resize(bytes);
    far->generation = epoch.value();
    far->told = far->heard = epoch.value();
    far->epoch = epoch;
    const LeaseView view{.base = mapped ? space.Of(far->memory.data()) : backend::DeviceAddress(),
                         .bytes = bytes,
                         .word = {.word = mapped ? &far->told : &far->heard, .granted = epoch.value()},
                         .slow_link = slow_link};
    leases_[lease] = std::move(far);
    return view;
  }
  std::byte* Memory(kv::LeaseId lease) {
    absl::MutexLock lock(&mutex_);
    return leases_.at(lease)->memory.data();
  }
  /// What its donor does when it fences it; garbage is there from now on.
  void Fence(kv::LeaseId lease) override {
    log_.Add(absl::StrCat("Fence ", lease.value()));
    if (on_fence) on_fence(lease);
    absl::MutexLock lock(&mutex_);
    const auto it = leases_.find(lease);
    if (it == leases_.end()) return;
    ++it->second->generation;
    if (tells_) it->second->told = it->second->generation;
    std::fill(it->second->memory.begin(), it->second->memory.end(), std::byte{0xEE});
  }
  /// Its donor writes into what it lent, and the word stays what it was.
  void Scribble(kv::LeaseId lease) {
    absl::MutexLock lock(&mutex_);
    std::vector<std::byte>& memory = leases_.at(lease)->memory;
    for (size_t i = 0; i < memory.size(); ++i) memory[i] = std::byte(0x5B ^ (i * 31));
  }
  /// Its donor, which has fenced it, shows the word that it was granted with.
  void ShowOldWord(kv::LeaseId lease) {
    absl::MutexLock lock(&mutex_);
    Far& far = *leases_.at(lease);
    far.told = far.epoch.value();
  }
  /// False, and until it is true: views and loads say of every lease that it is what was granted.
  void TellReaders(bool tell) {
    absl::MutexLock lock(&mutex_);
    tells_ = tell;
    for (auto& [id, far] : leases_) far->told = tell ? far->generation : far->epoch.value();
  }
  void Land(const PendingStore& store) {
    store.after.Wait();
    std::memcpy(Memory(store.lease) + store.offset_bytes, space.Host(store.from), store.bytes);
  }
  void SetStats(const TransportStats& stats) {
    absl::MutexLock lock(&mutex_);
    stats_ = stats;
  }

  const CallLog& log() const { return log_; }
  /// What its donor heard last; nothing yet: nothing.
  std::optional<int64_t> HeatOf(kv::LeaseId lease) const {
    absl::MutexLock lock(&mutex_);
    const auto it = heats_.find(lease);
    return it == heats_.end() ? std::nullopt : std::optional(it->second);
  }
  std::vector<PendingStore> stores() const {
    absl::MutexLock lock(&mutex_);
    return stores_;
  }
  /// Those since the last call.
  std::vector<PendingStore> TakeStores() {
    absl::MutexLock lock(&mutex_);
    return std::exchange(stores_, {});
  }
  /// Told to donors by streams and stores: one a donor for each batch, whatever its size. Each lease is another donor's.
  int64_t control_messages() const {
    absl::MutexLock lock(&mutex_);
    return control_messages_;
  }
  /// From now on the donor of this lease says nothing.
  void Silence(kv::LeaseId lease) {
    absl::MutexLock lock(&mutex_);
    silent_.insert(lease);
  }
  /// How many were asked for when what they begin after was not done.
  struct Behind {
    int64_t stores = 0, streams = 0;
  };
  Behind asked_behind() const {
    absl::MutexLock lock(&mutex_);
    return behind_;
  }
  /// Leases of which anything was ever streamed.
  std::set<kv::LeaseId> streamed() const {
    absl::MutexLock lock(&mutex_);
    return streamed_;
  }
  /// Slices that steps had to wait for at their beginning, and those that the step before had brought.
  struct FirstLayers {
    int64_t loaded = 0, found = 0;
  };
  FirstLayers first_layers() const {
    absl::MutexLock lock(&mutex_);
    return first_layers_;
  }
  /// To be asked by the loop's thread.
  int64_t streams_under_way() const { return streams_; }
  int64_t loads_under_way() const {
    absl::MutexLock lock(&mutex_);
    return static_cast<int64_t>(loads_.size()) + streams_;
  }
  const char* kind() const override { return "fake"; }
  bool maps() const override { return mapped; }
  bool measures_links() const override { return measures; }
  int64_t most_streamed_blocks(int64_t layers) const override { return most_streamed; }
  std::string channel() const override { return "fake-channel"; }
  absl::StatusOr<kv::Epoch> Grant(const GrantSpec& spec) override {
    log_.Add(absl::StrCat("Grant ", spec.lease.value()));
    if (const absl::Status status = on_grant ? on_grant(spec) : absl::OkStatus(); !status.ok()) return status;
    absl::MutexLock lock(&mutex_);
    return kv::Epoch(++last_epoch_);
  }
  bool exchanges() const override { return on_exchange != nullptr; }
  absl::Status PrepareToLend(int64_t offset_bytes, int64_t) override {
    log_.Add(absl::StrCat("PrepareToLend ", offset_bytes));
    return on_prepare ? on_prepare() : absl::OkStatus();
  }
  absl::Status Exchange(int64_t offset_bytes, int64_t bytes) override {
    log_.Add(absl::StrCat("Exchange ", offset_bytes));
    return on_exchange(offset_bytes, bytes);
  }
  void SendRevoke(kv::LeaseId lease, absl::Duration) override { log_.Add(absl::StrCat("SendRevoke ", lease.value())); }
  void SendRenewed(kv::LeaseId lease) override { log_.Add(absl::StrCat("SendRenewed ", lease.value())); }
  void Open(const OpenSpec& spec) override { log_.Add(absl::StrCat("Open ", spec.lease.value())); }
  void SendRenewal(kv::LeaseId lease, int64_t heat) override {
    log_.Add(absl::StrCat("SendRenewal ", lease.value()));
    absl::MutexLock lock(&mutex_);
    heats_[lease] = heat;
  }
  void SendRelease(kv::LeaseId lease) override { log_.Add(absl::StrCat("SendRelease ", lease.value())); }
  void Abandon(kv::LeaseId lease) override { log_.Add(absl::StrCat("Abandon ", lease.value())); }
  /// Who reads it from now on reads what was never written, and no generation says so.
  void Close(kv::LeaseId lease) override {
    log_.Add(absl::StrCat("Close ", lease.value()));
    absl::MutexLock lock(&mutex_);
    const auto it = leases_.find(lease);
    if (it != leases_.end()) std::fill(it->second->memory.begin(), it->second->memory.end(), std::byte{0xDD});
  }
  std::vector<Ticket> Store(std::span<const StorePiece> pieces, const backend::Fence& after) override {
    const bool behind = !after.Passed();
    absl::MutexLock lock(&mutex_);
    behind_.stores += behind;
    std::vector<Ticket> tickets;
    std::set<kv::LeaseId> told;
    for (const StorePiece& piece : pieces) told.insert(piece.lease);
    control_messages_ += static_cast<int64_t>(told.size());
    for (const StorePiece& piece : pieces) {
      stores_.push_back({Ticket(++last_ticket_), piece.lease, piece.offset_bytes, piece.from, piece.bytes, after});
      tickets.push_back(stores_.back().ticket);
    }
    return tickets;
  }
  Ticket Load(std::vector<LoadPiece> pieces, const backend::Fence& after) override {
    PendingLoad load{std::move(pieces), after};
    if (is_prompt && is_prompt()) Copy(load);
    absl::MutexLock lock(&mutex_);
    const Ticket ticket(++last_ticket_);
    loads_[ticket] = std::move(load);
    return ticket;
  }
  std::vector<kv::LeaseId> Await(Ticket ticket) override {
    if (on_await) on_await();
    PendingLoad load;
    {
      absl::MutexLock lock(&mutex_);
      load = std::move(loads_.extract(ticket).mapped());
    }
    if (!load.copied) Copy(load);
    return load.lost;
  }
  std::unique_ptr<SliceStream> BeginStream(StreamSpec spec, const backend::Fence& after) override {
    return std::make_unique<Stream>(*this, std::move(spec), after);
  }
  void Stop() override {}  // nothing here runs by itself
  TransportStats stats() const override {
    absl::MutexLock lock(&mutex_);
    return stats_;
  }

 private:
  // A layer is copied when somebody waits for it, or, at the latest, when its slots are to be written again.
  class Stream final : public SliceStream {
   public:
    Stream(FakeTransport& transport, StreamSpec spec, const backend::Fence& after)
        : state_(std::make_shared<State>(transport, std::move(spec), after)) {
      std::set<kv::LeaseId> told;
      FirstLayers first;
      for (const StreamSpec::Source& source : state_->spec.sources) {
        told.insert(source.lease);
        ++(source.first_is_there ? first.found : first.loaded);
      }
      const bool behind = !after.Passed();
      {
        absl::MutexLock lock(&transport.mutex_);
        transport.behind_.streams += behind;
        transport.first_layers_.loaded += first.loaded;
        transport.first_layers_.found += first.found;
        transport.control_messages_ += static_cast<int64_t>(told.size());
        transport.streamed_.insert(told.begin(), told.end());
        ++transport.streams_;
      }
      const bool at_once = transport.early_slots || (transport.is_prompt && transport.is_prompt());
      for (int64_t layer = 0; layer < 2 && at_once; ++layer) state_->Arrive(layer);
    }
    ~Stream() override {
      (void)End();
      --state_->transport.streams_;
    }
    backend::Fence Arrived(int64_t layer) override {
      if (layer == 0 && state_->spec.first_is_there()) return {};
      return backend::Fence(std::make_shared<Arrival>(state_, layer));
    }
    void Release(int64_t layer, const backend::Fence& read) override {
      state_->read[layer] = read;
      if (state_->transport.early_slots) state_->Arrive(layer + 2);
    }
    std::vector<kv::LeaseId> Lost() const override { return state_->lost; }
    std::vector<kv::LeaseId> End() override {
      const int64_t layers = state_->spec.num_layers;
      if (state_->spec.first_again && state_->read.contains(layers - 2)) state_->Arrive(layers);
      return state_->lost;
    }

   private:
    struct State {
      State(FakeTransport& transport, StreamSpec spec, backend::Fence after)
          : transport(transport), spec(std::move(spec)), after(std::move(after)) {}
      void Arrive(int64_t layer) {
        if (layer < arrived || layer >= spec.num_arrivals()) return;
        arrived = layer + 1;
        if (transport.on_await) transport.on_await();
        if (layer < 2) after.Wait();
        if (layer >= 2 && !transport.early_slots) read.at(layer - 2).Wait();
        std::vector<LoadPiece> pieces;
        for (const StreamSpec::Source& source : spec.sources) {
          if (std::find(lost.begin(), lost.end(), source.lease) != lost.end()) continue;
          if (layer == 0 && (source.first_is_there || transport.TakesForThere(source))) continue;
          pieces.push_back({source.lease, spec.OffsetOf(source, layer), spec.slice_bytes, source.slots[layer % 2]});
          transport.NoteSlot(transport.space.Host(pieces.back().to), layer == spec.num_layers);
        }
        for (const kv::LeaseId lease : transport.Copy(pieces)) lost.push_back(lease);
      }
      FakeTransport& transport;
      const StreamSpec spec;
      const backend::Fence after;
      int64_t arrived = 0;  // layers
      std::map<int64_t, backend::Fence> read;
      std::vector<kv::LeaseId> lost;
    };
    struct Arrival final : backend::FenceState {
      Arrival(std::shared_ptr<State> state, int64_t layer) : state(std::move(state)), layer(layer) {}
      bool Passed() const override { return layer < state->arrived; }
      void Wait() const override { state->Arrive(layer); }
      const std::shared_ptr<State> state;
      const int64_t layer;
    };
    const std::shared_ptr<State> state_;
  };

  struct PendingLoad {
    std::vector<LoadPiece> pieces;
    backend::Fence after;
    bool copied = false;
    std::vector<kv::LeaseId> lost;
  };
  void Copy(PendingLoad& load) {
    load.after.Wait();
    load.lost = Copy(load.pieces);
    load.copied = true;
  }

  void NoteSlot(const std::byte* slot, bool has_first) {
    if (has_first) {
      firsts_.insert(slot);
    } else {
      firsts_.erase(slot);
    }
  }
  bool TakesForThere(const StreamSpec::Source& source) const {
    return keeps_any_first && firsts_.contains(space.Host(source.slots[0]));
  }

  std::vector<kv::LeaseId> Copy(const std::vector<LoadPiece>& pieces) {
    std::vector<kv::LeaseId> lost = AwaitSilent(pieces);
    absl::MutexLock lock(&mutex_);
    for (const LoadPiece& piece : pieces) {
      const auto it = leases_.find(piece.lease);
      const bool good = it != leases_.end() && it->second->told == it->second->epoch.value();
      if (it != leases_.end()) {
        std::memcpy(space.Host(piece.to), it->second->memory.data() + piece.offset_bytes, piece.bytes);
        stats_.loaded_bytes += piece.bytes;
      }
      if (!good && std::find(lost.begin(), lost.end(), piece.lease) == lost.end()) lost.push_back(piece.lease);
    }
    return lost;
  }

  std::vector<kv::LeaseId> AwaitSilent(const std::vector<LoadPiece>& pieces) {
    std::vector<kv::LeaseId> silent;
    for (const LoadPiece& piece : pieces) {
      {
        absl::MutexLock lock(&mutex_);
        if (!silent_.contains(piece.lease)) continue;
      }
      if (std::find(silent.begin(), silent.end(), piece.lease) != silent.end()) continue;
      if (on_silence) on_silence(piece.lease);
      silent.push_back(piece.lease);
    }
    return silent;
  }

  struct Far {
    std::vector<std::byte> memory;
    uint64_t generation = 0;
    std::atomic<uint64_t> told{0};   // as readers see it
    std::atomic<uint64_t> heard{0};  // this side's, where nothing is mapped: it never hears of an end
    kv::Epoch epoch;
  };
  CallLog log_;
  mutable absl::Mutex mutex_;
  std::map<kv::LeaseId, int64_t> heats_ ABSL_GUARDED_BY(mutex_);
  std::map<kv::LeaseId, std::unique_ptr<Far>> leases_ ABSL_GUARDED_BY(mutex_);
  std::map<Ticket, PendingLoad> loads_ ABSL_GUARDED_BY(mutex_);
  std::vector<PendingStore> stores_ ABSL_GUARDED_BY(mutex_);
  TransportStats stats_ ABSL_GUARDED_BY(mutex_);
  // Of the loop's thread.
  int64_t streams_ = 0;
  std::set<const std::byte*> firsts_;  // slots where a first layer came for the next step
  bool tells_ ABSL_GUARDED_BY(mutex_) = true;
  std::set<kv::LeaseId> silent_ ABSL_GUARDED_BY(mutex_), streamed_ ABSL_GUARDED_BY(mutex_);
  Behind behind_ ABSL_GUARDED_BY(mutex_);
  FirstLayers first_layers_ ABSL_GUARDED_BY(mutex_);
  int64_t control_messages_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t last_ticket_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t last_epoch_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace swiftcache::engine::transport
