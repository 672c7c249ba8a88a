// SPDX-License-Identifier: Apache-2.0
// The transport between engines on one machine: granted memory is mapped read-only by its borrower, stores cross its
// staging memory, messages go over a Unix socket per lease (shm_message.h).
//
//   ShmTransport::Options options = {.shm_dir = DefaultShmDir(), .name = "chat",
//                                    .instance_id = instance};
//   ASSIGN_OR_RETURN(std::unique_ptr<Transport> transport, ShmTransport::Create(options, arena, clock, events));
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "engine/backend/address_space.h"
#include "engine/memory/arena.h"
#include "engine/transport/peer_memory.h"
#include "engine/transport/shm_address.h"
#include "engine/transport/shm_borrower.h"
#include "engine/transport/shm_donor.h"
#include "engine/transport/shm_listener.h"
#include "engine/transport/shm_loop.h"
#include "engine/transport/transport.h"

namespace swiftcache::engine::transport {

/// Four threads, all asleep while there is nothing to move: one hears the sockets, and does nothing that takes long; one
/// copies foreign stores in and shows leases, one opens leases and sends stores, one loads.
/// Thread-safety: safe. Ownership: see Transport; arena, clock and events outlive it. Errors: Create: those of
/// ShmListener (--shm_dir, --name), RESOURCE_EXHAUSTED (memory, descriptors), FAILED_PRECONDITION (a kernel that cannot
/// seal), INVALID_ARGUMENT (a link that cannot be).
class ShmTransport final : public Transport {
 public:
  struct Options {
    std::string shm_dir;      // one for all engines that share; made where it is missing
    std::string name;         // of the engine, unique in shm_dir
    std::string instance_id;  // what grants to this engine name
    double link_gbps = 0;     // Gbit/s each way, as if stores and loads crossed such a link; 0: as fast as memory
    absl::Duration link_latency;
    backend::AddressSpace space = {};  // of the addresses that Store, Load and views deal in
    bool remap_on_return = false;      // ShmMemory
  };
  static absl::StatusOr<std::unique_ptr<ShmTransport>> Create(const Options& options, memory::Arena& arena,
                                                              const Clock& clock, TransportEvents& events);
  /// The same protocol over other memory. `kind` is the value of --transport that asks for it, and lives for ever.
  static absl::StatusOr<std::unique_ptr<ShmTransport>> CreateOver(const char* kind, std::unique_ptr<PeerMemory> memory,
                                                                  const Options& options, const Clock& clock,
                                                                  TransportEvents& events);
  ~ShmTransport() override { Stop(); }
  void Stop() override;

  const char* kind() const override { return kind_; }
  std::string protocol() const override;
  bool maps() const override { return true; }
  bool measures_links() const override { return memory_->measures_links(); }
  std::string channel() const override { return listener_.path(); }
  absl::StatusOr<kv::Epoch> Grant(const GrantSpec& spec) override { return donor_->Grant(spec); }
  void SendRevoke(kv::LeaseId lease, absl::Duration time_left) override { donor_->SendRevoke(lease, time_left); }
  void SendRenewed(kv::LeaseId lease) override { donor_->SendRenewed(lease); }
  void Fence(kv::LeaseId lease) override { donor_->Fence(lease); }
  bool exchanges() const override { return memory_->exchanges(); }
  absl::Status PrepareToLend(int64_t offset_bytes, int64_t bytes) override {
    return memory_->PrepareToLend(offset_bytes, bytes);
  }
  absl::Status Exchange(int64_t offset_bytes, int64_t bytes) override { return memory_->Exchange(offset_bytes, bytes); }

  void Open(const OpenSpec& spec) override;
  void SendRenewal(kv::LeaseId lease, int64_t heat) override { borrower_.SendRenewal(lease, heat); }
  void SendRelease(kv::LeaseId lease) override { borrower_.SendRelease(lease); }
  void Abandon(kv::LeaseId lease) override { borrower_.Abandon(lease); }
  void Close(kv::LeaseId lease) override { borrower_.Close(lease); }
  std::vector<Ticket> Store(std::span<const StorePiece> pieces, const backend::Fence& after) override;
  Ticket Load(std::vector<LoadPiece> pieces, const backend::Fence& after) override ABSL_LOCKS_EXCLUDED(mutex_);
  std::vector<kv::LeaseId> Await(Ticket load) override ABSL_LOCKS_EXCLUDED(mutex_);
  std::unique_ptr<SliceStream> BeginStream(StreamSpec spec, const backend::Fence& after) override;
  TransportStats stats() const override;
  std::optional<double> read_rate(bool in_place) const override;

 private:
  ShmTransport(const char* kind, std::unique_ptr<PeerMemory> memory, const Options& options, const Clock& clock,
               TransportEvents& events, ShmListener listener, std::unique_ptr<ShmDonor> donor);
  absl::Status Start();

  std::atomic<int64_t> next_ticket_ = 1;
  const char* const kind_;
  const std::unique_ptr<PeerMemory> memory_;
  const double link_gbps_;
  ShmListener listener_;
  std::unique_ptr<ShmDonor> donor_;
  ShmBorrower borrower_;
  const std::unique_ptr<LeaseLoader> loader_;
  std::unique_ptr<ShmLoop> loop_;
  absl::Mutex mutex_;
  absl::flat_hash_map<Ticket, std::shared_ptr<const PendingLoad>> loads_ ABSL_GUARDED_BY(mutex_);  // not awaited yet
};

}  // namespace swiftcache::engine::transport
