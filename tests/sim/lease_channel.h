// SPDX-License-Identifier: Apache-2.0
// The transport of the simulation: grants, channels between borrower and donor, stores, generation words; with delays,
// late copies and peers that die. It holds its callers to the contract of engine/transport/transport.h.
//
//   channels.Grant(lease, first_cell, num_cells);
//   channels.Open(lease);  // -> OnOpened
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "engine/lease/lease.h"
#include "tests/sim/memory.h"
#include "tests/sim/network.h"
#include "tests/sim/plan.h"

namespace swiftcache::sim {

class ChannelEvents {
 public:
  virtual ~ChannelEvents() = default;
  virtual void OnBorrowerOpened(LeaseId id) = 0;
  virtual void OnRenewal(LeaseId id) = 0;
  virtual void OnReleased(LeaseId id) = 0;
  virtual void OnBorrowerGone(LeaseId id) = 0;
  virtual void OnOpened(LeaseId id, bool ok) = 0;
  virtual void OnRenewed(LeaseId id) = 0;
  virtual void OnRevoked(LeaseId id, absl::Duration time_left) = 0;
  virtual void OnDonorGone(LeaseId id) = 0;
  virtual void OnStored(int64_t ticket, bool ok) = 0;
  /// Whether the loop may still read or store there.
  virtual bool InUse(LeaseId id) const = 0;
};

/// All lease channels of one engine. Thread-safety: none. Ownership: borrows all that it is given; memory is shared
/// with the borrowers that map it.
class LeaseChannels {
 public:
  /// Who listens on which channel (its name is the instance of the engine).
  using Directory = std::map<std::string, LeaseChannels*>;

  LeaseChannels(Simulator& sim, Network& network, Directory& directory, Tally& tally, Process& process, int endpoint,
                ChannelEvents& events)
      : sim_(sim),
        network_(network),
        directory_(directory),
        tally_(tally),
        process_(process),
        endpoint_(endpoint),
        events_(events) {}

  /// A new life with a new arena.
  void Start(const std::string& instance, int64_t num_cells);
  /// What the kernel does when a process dies: peers see their connections closed.
  void Die();

  // Donor.
  uint64_t Grant(const engine::lease::Lease& lease, int64_t first_cell, int64_t num_cells);
  void SendRevoke(LeaseId id, absl::Duration time_left);
  void SendRenewed(LeaseId id);
  void Fence(LeaseId id);

  // Borrower.
  void Open(const engine::lease::Lease& lease);
  void SendRenewal(LeaseId id);
  void SendRelease(LeaseId id);
  void Close(LeaseId id);
  int64_t Store(LeaseId id, int64_t first_cell, std::vector<uint64_t> values);

  const View* Find(LeaseId id) const;
  Memory& memory() { return *memory_; }
  /// The lease that a cell is granted under; 0: none.
  int64_t grant_of(int64_t cell) const { return granted_[cell]; }
  bool granted(LeaseId id) const { return grants_.contains(id); }
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

  void ToDonor(const ConnectionPtr& connection, Message message, bool may_repeat = true);
  void ToBorrower(const ConnectionPtr& connection, Message message, bool may_repeat = true);
  void Accept(const ConnectionPtr& connection, const std::string& capability, const std::string& instance);
  void Answer(const ConnectionPtr& connection, std::optional<View> view);
  void DonorEnded(const ConnectionPtr& connection);
  void BorrowerEnded(const ConnectionPtr& connection);
  void Receive(const ConnectionPtr& connection, int64_t ticket, int64_t first_cell,
               const std::vector<uint64_t>& values);
  void Finish(int64_t ticket, bool ok);
  ConnectionPtr Outgoing(LeaseId id) const;
  size_t FreeSlot();

  Simulator& sim_;
  Network& network_;
  Directory& directory_;
  Tally& tally_;
  Process& process_;
  const int endpoint_;
  ChannelEvents& events_;

  std::string instance_;
  std::shared_ptr<Memory> memory_;
  std::vector<int64_t> granted_;  // by cell
  std::set<size_t> used_slots_;
  uint64_t last_generation_ = 0;
  std::map<LeaseId, GrantRecord> grants_;
  std::map<int64_t, ConnectionPtr> incoming_;  // by number
  std::map<LeaseId, ConnectionPtr> outgoing_;
  std::map<LeaseId, View> views_;
  std::map<int64_t, LeaseId> stores_;  // by ticket
  int64_t last_ticket_ = 0, last_connection_ = 0;
};

}  // namespace swiftcache::sim
