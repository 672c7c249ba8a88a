// SPDX-License-Identifier: Apache-2.0
// The transport of the simulation: grants, channels between borrower and donor, stores, generation words; with delays,
// late copies and peers that die. It holds coordinator and loop to the contract of
// transport::Transport.
//
//   channels.Grant({.lease = id, .offset_bytes = ..., .bytes = ...});
//   channels.Open({.lease = id, .channel = instance, ...});  // -> OnOpened
//   channels.Store(pieces, written);                         // -> OnStored
//   channels.BeginReads(checks); ... channels.EndReads();    // around a step that reads in place
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/transport/transport.h"
#include "tests/sim/memory.h"
#include "tests/sim/network.h"
#include "tests/sim/plan.h"

namespace swiftcache::sim {

/// All lease channels of one engine. Thread-safety: none. Ownership: borrows all that it is given; memory is shared
/// with the borrowers that map it.
class LeaseChannels final : public engine::transport::Transport {
 public:
  /// Who listens on which channel (its name is the instance of the engine).
  using Directory = std::map<std::string, LeaseChannels*>;
  /// The loop, as far as it concerns them: what it promises, and its time.
  struct LoopHooks {
    std::function<bool(LeaseId)> knows;  // it may read there again
    std::function<bool(LeaseId, int64_t cell)> has_given_up;
    std::function<void(Micros)> pass;  // it waits so long
  };

  LeaseChannels(Simulator& sim, Network& network, Directory& directory, Tally& tally, Process& process, int endpoint,
                PlantedBug bug, LoopHooks loop)
      : sim_(sim),
        network_(network),
        directory_(directory),
        tally_(tally),
        process_(process),
        endpoint_(endpoint),
        bug_(bug),
        loop_(std::move(loop)) {}

  /// A new life with a new arena.
  void Start(const std::string& instance, int64_t num_cells, engine::transport::TransportEvents& events);
  /// What the kernel does when a process dies: peers see their connections closed.
  void Die();

  const char* kind() const override { return "simulated"; }
  bool maps() const override { return true; }
  std::string channel() const override { return instance_; }
  engine::transport::TransportStats stats() const override { return {}; }
  void Stop() override { Die(); }

  // Donor.
  absl::StatusOr<engine::kv::Epoch> Grant(const engine::transport::GrantSpec& spec) override;
  void SendRevoke(LeaseId id, absl::Duration time_left) override;
  void SendRenewed(LeaseId id) override;
  void Fence(LeaseId id) override;

  // Borrower.
  void Open(const engine::transport::OpenSpec& spec) override;
  void SendRenewal(LeaseId id, int64_t heat) override;
  void SendRelease(LeaseId id) override;
  void Abandon(LeaseId id) override;
  void Close(LeaseId id) override;
  // Of bytes (lease_channel_bytes.cc). What is stored or loaded is read at any time that the contract leaves.
  std::vector<engine::transport::Ticket> Store(std::span<const engine::transport::StorePiece> pieces,
                                               const engine::backend::Fence& after) override;
  engine::transport::Ticket Load(std::vector<engine::transport::LoadPiece> pieces,
                                 const engine::backend::Fence& after) override;
  std::vector<LeaseId> Await(engine::transport::Ticket load) override;
  /// Ends the run: no loop here streams.
  std::unique_ptr<engine::transport::SliceStream> BeginStream(engine::transport::StreamSpec spec,
                                                              const engine::backend::Fence& after) override;
  /// Around a step that reads leases in place. False: it must not, and the run has failed.
  bool BeginReads(std::span<const engine::backend::WordCheck> checks);
  void EndReads() { in_step_.clear(); }
  /// Before each write to the own arena.
  void NoteWrite(engine::backend::DeviceAddress to, int64_t bytes);

  const std::shared_ptr<Memory>& memory() const { return memory_; }
  /// The lease that a cell is granted under; 0: none.
  int64_t grant_of(int64_t cell) const { return granted_[cell]; }
  bool granted(LeaseId id) const { return grants_.contains(id); }
  /// By when a lease that was revoked has to be back, once; no value: it was not revoked.
  std::optional<absl::Time> TakeRevokeDeadline(LeaseId id);
  int64_t num_grants() const { return static_cast<int64_t>(grants_.size()); }
  int64_t num_open() const { return static_cast<int64_t>(outgoing_.size()); }

 private:
  struct Connection {
    LeaseId lease;
    engine::kv::Epoch epoch;  // that the borrower expects
    int64_t number = 0;       // unique among those of the donor
    LeaseChannels* donor = nullptr;
    LeaseChannels* borrower = nullptr;
    Pipe to_donor, to_borrower;
  };
  // Both ends and the messages on their way hold it; it goes with the last.
  using ConnectionPtr = std::shared_ptr<Connection>;
  struct GrantRecord {
    size_t slot = 0;
    int64_t first_cell = 0, num_cells = 0;
    std::string borrower_instance, capability;
    ConnectionPtr connection;
  };
  using Message = std::function<void(LeaseChannels&)>;
  using Words = std::vector<uint64_t>;
  using GrantedWord = std::pair<const std::atomic<uint64_t>*, uint64_t>;  // a slot's word, and what it was at the grant
  struct PendingStore {
    LeaseId to;
    std::optional<LeaseId> from;  // none: own memory
  };
  struct PendingLoad {
    std::vector<engine::transport::LoadPiece> pieces;
    bool copied = false;
    std::vector<LeaseId> lost;
  };

  void ToDonor(const ConnectionPtr& connection, Message message, bool may_repeat = true);
  void ToBorrower(const ConnectionPtr& connection, Message message, bool may_repeat = true);
  void Accept(const ConnectionPtr& connection, const std::string& capability, const std::string& instance);
  void Answer(const ConnectionPtr& connection, std::optional<View> view);
  void DonorEnded(const ConnectionPtr& connection);
  void BorrowerEnded(const ConnectionPtr& connection);
  int64_t Store(const engine::transport::StorePiece& piece);
  std::function<Words()> Source(const engine::transport::StorePiece& piece, PendingStore& store);
  void Receive(const ConnectionPtr& connection, int64_t ticket, int64_t first_word, const Words& words);
  void Copy(PendingLoad& load);
  bool IsRead(LeaseId id) const;
  std::vector<int64_t> StoresTo(LeaseId id) const;
  void Finish(int64_t ticket, bool ok);
  ConnectionPtr Outgoing(LeaseId id) const;
  const View* Find(LeaseId id) const;
  size_t FreeSlot();

  Simulator& sim_;
  Network& network_;
  Directory& directory_;
  Tally& tally_;
  Process& process_;
  const int endpoint_;
  const PlantedBug bug_;
  const LoopHooks loop_;
  engine::transport::TransportEvents* events_ = nullptr;

  std::string instance_;
  std::shared_ptr<Memory> memory_;
  std::vector<int64_t> granted_;  // by cell
  std::set<size_t> used_slots_;
  uint64_t last_generation_ = 0;
  std::map<LeaseId, GrantRecord> grants_;
  std::map<int64_t, ConnectionPtr> incoming_;  // by number
  std::map<LeaseId, ConnectionPtr> outgoing_;
  std::map<LeaseId, View> views_;
  std::map<GrantedWord, LeaseId> lease_of_;
  std::map<LeaseId, std::atomic<uint64_t>> believed_;  // words that never change, where that bug is planted
  std::map<int64_t, PendingStore> stores_;             // by ticket
  std::map<int64_t, PendingLoad> loads_;               // likewise
  std::vector<LeaseId> in_step_;                       // that the step under way reads
  std::set<LeaseId> released_, abandoned_;
  std::map<LeaseId, absl::Time> revoke_deadlines_;
  int64_t last_ticket_ = 0, last_connection_ = 0;
};

}  // namespace swiftcache::sim
