// SPDX-License-Identifier: Apache-2.0
// The transport between engines whose memory cannot be mapped: KV travels by NCCL from device to device, messages over
// a Unix socket a pair (nccl_message.h). Nothing can be read in place.
//
//   NcclTransport::Options options = {.shm_dir = dir, .name = "chat", .instance_id = instance, .arena = arena.base(),
//                                     .arena_bytes = arena.bytes()};
//   ASSIGN_OR_RETURN(std::unique_ptr<Transport> transport,
//                    NcclTransport::Create(options, *nccl, *driver, clock, events));
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "common/base/clock.h"
#include "engine/backend/cuda/driver.h"
#include "engine/transport/nccl/nccl_api.h"
#include "engine/transport/nccl/nccl_borrower.h"
#include "engine/transport/nccl/nccl_donor.h"
#include "engine/transport/shm_listener.h"
#include "engine/transport/shm_loop.h"
#include "engine/transport/transport.h"

namespace swiftcache::engine::transport::nccl {

/// Two threads, one that hears the sockets and one that dials and tells, and one for each pair of engines.
/// Thread-safety: safe. Ownership: see Transport; NCCL, driver, clock and events outlive it, and the arena's memory.
/// Errors: Create: those of ShmListener (--shm_dir, --name), RESOURCE_EXHAUSTED (descriptors), INVALID_ARGUMENT (an
/// instance's name that is too long).
class NcclTransport final : public Transport {
 public:
  struct Options {
    std::string shm_dir;      // one for all engines that share; made where it is missing
    std::string name;         // of the engine, unique in shm_dir
    std::string instance_id;  // what grants to this engine name
    backend::DeviceAddress arena;
    int64_t arena_bytes = 0;
  };
  static absl::StatusOr<std::unique_ptr<NcclTransport>> Create(const Options& options, NcclApi& nccl,
                                                               backend::cuda::Driver& driver, const Clock& clock,
                                                               TransportEvents& events);
  ~NcclTransport() override { Stop(); }
  void Stop() override;

  const char* kind() const override { return "nccl"; }
  /// With NCCL's own version, too: two of different versions make no communicator.
  std::string protocol() const override;
  bool maps() const override { return false; }
  int64_t most_streamed_blocks(int64_t layers) const override { return MostStreamed(layers); }
  std::string channel() const override { return listener_.path(); }
  absl::StatusOr<kv::Epoch> Grant(const GrantSpec& spec) override { return donor_.Grant(spec); }
  void SendRevoke(kv::LeaseId lease, absl::Duration time_left) override { donor_.SendRevoke(lease, time_left); }
  void SendRenewed(kv::LeaseId lease) override { donor_.SendRenewed(lease); }
  void Fence(kv::LeaseId lease) override { donor_.Fence(lease); }

  void Open(const OpenSpec& spec) override;
  void SendRenewal(kv::LeaseId lease, int64_t heat) override { borrower_.SendRenewal(lease, heat); }
  void SendRelease(kv::LeaseId lease) override { borrower_.SendRelease(lease); }
  void Abandon(kv::LeaseId lease) override { borrower_.Abandon(lease); }
  void Close(kv::LeaseId lease) override { borrower_.Close(lease); }
  std::vector<Ticket> Store(std::span<const StorePiece> pieces, const backend::Fence& after) override;
  Ticket Load(std::vector<LoadPiece> pieces, const backend::Fence& after) override;
  std::vector<kv::LeaseId> Await(Ticket load) override;
  std::unique_ptr<SliceStream> BeginStream(StreamSpec spec, const backend::Fence& after) override;
  TransportStats stats() const override;

 private:
  NcclTransport(const Options& options, NcclApi& nccl, backend::cuda::Driver& driver, const Clock& clock,
                TransportEvents& events, ShmListener listener);
  absl::Status Start();

  const int nccl_version_;
  std::atomic<int64_t> next_ticket_ = 1;
  ShmListener listener_;
  NcclDonor donor_;
  NcclBorrower borrower_;
  std::unique_ptr<ShmLoop> loop_;
  absl::Mutex mutex_;
  absl::flat_hash_map<Ticket, NcclBegun> loads_ ABSL_GUARDED_BY(mutex_);  // not awaited yet
};

}  // namespace swiftcache::engine::transport::nccl
