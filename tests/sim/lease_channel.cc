// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/lease_channel.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace swiftcache::sim {

void LeaseChannels::Start(const std::string& instance, int64_t num_cells) {
  instance_ = instance;
  directory_[instance] = this;
  memory_ = std::make_shared<Memory>();
  memory_->cells.resize(num_cells);
  granted_.assign(num_cells, 0);
}

void LeaseChannels::Die() {
  directory_.erase(instance_);
  for (const auto& [number, connection] : incoming_) {
    ToBorrower(connection, [connection = connection](LeaseChannels& to) { to.DonorEnded(connection); });
  }
  for (const auto& [id, connection] : outgoing_) {
    ToDonor(connection, [connection = connection](LeaseChannels& to) { to.BorrowerEnded(connection); });
  }
  used_slots_.clear();
  grants_.clear();
  incoming_.clear();
  outgoing_.clear();
  views_.clear();
  stores_.clear();
}

void LeaseChannels::ToDonor(const ConnectionPtr& connection, Message message, bool may_repeat) {
  if (connection->donor == nullptr) return;
  LeaseChannels* const to = connection->donor;
  network_.SendInOrder(
      connection->to_donor, endpoint_, to->endpoint_, to->process_,
      [to, message = std::move(message)] { message(*to); }, may_repeat);
}

void LeaseChannels::ToBorrower(const ConnectionPtr& connection, Message message, bool may_repeat) {
  LeaseChannels* const to = connection->borrower;
  network_.SendInOrder(
      connection->to_borrower, endpoint_, to->endpoint_, to->process_,
      [to, message = std::move(message)] { message(*to); }, may_repeat);
}

size_t LeaseChannels::FreeSlot() {
  size_t slot = 0;
  while (used_slots_.contains(slot)) ++slot;
  used_slots_.insert(slot);
  if (memory_->generations.size() <= slot) memory_->generations.resize(slot + 1);
  return slot;
}

uint64_t LeaseChannels::Grant(const engine::lease::Lease& lease, int64_t first_cell, int64_t num_cells) {
  for (int64_t cell = first_cell; cell < first_cell + num_cells; ++cell) {
    if (granted_[cell] != 0) {
      sim_.Fail(absl::StrCat(instance_, " grants cell ", cell, " to lease ", lease.id.value(), " and to lease ",
                             granted_[cell]));
    }
    granted_[cell] = lease.id.value();
  }
  const size_t slot = FreeSlot();
  memory_->generations[slot] = ++last_generation_;
  grants_[lease.id] = {slot, first_cell, num_cells, lease.borrower_instance, lease.capability, nullptr};
  ++tally_.grants;
  return last_generation_;
}

void LeaseChannels::Fence(LeaseId id) {
  const auto it = grants_.find(id);
  if (it == grants_.end()) return;
  GrantRecord& grant = it->second;
  memory_->generations[grant.slot] = ++last_generation_;
  used_slots_.erase(grant.slot);
  std::fill_n(granted_.begin() + grant.first_cell, grant.num_cells, 0);
  if (const ConnectionPtr connection = grant.connection) {
    incoming_.erase(connection->number);
    ToBorrower(connection, [connection](LeaseChannels& to) { to.DonorEnded(connection); });
  }
  grants_.erase(it);
}

void LeaseChannels::SendRevoke(LeaseId id, absl::Duration time_left) {
  const auto it = grants_.find(id);
  if (it == grants_.end() || it->second.connection == nullptr) return;
  ToBorrower(it->second.connection, [id, time_left](LeaseChannels& to) { to.events_.OnRevoked(id, time_left); });
}

void LeaseChannels::SendRenewed(LeaseId id) {
  const auto it = grants_.find(id);
  if (it == grants_.end() || it->second.connection == nullptr) return;
  ToBorrower(it->second.connection, [id](LeaseChannels& to) { to.events_.OnRenewed(id); });
}

void LeaseChannels::Open(const engine::lease::Lease& lease) {
  const auto connection = std::make_shared<Connection>();
  connection->lease = lease.id;
  connection->epoch = lease.epoch;
  connection->number = int64_t{endpoint_} << 32 | ++last_connection_;
  connection->borrower = this;
  if (outgoing_.contains(lease.id)) sim_.Fail(absl::StrCat("lease ", lease.id.value(), " is opened twice"));
  outgoing_[lease.id] = connection;
  const auto donor = directory_.find(lease.channel);
  if (donor == directory_.end()) {
    process_.After(network_.Delay(), [this, connection] { Answer(connection, std::nullopt); });
    return;
  }
  connection->donor = donor->second;
  connection->donor->incoming_[connection->number] = connection;
  ToDonor(
      connection,
      [connection, capability = lease.capability, instance = instance_](LeaseChannels& to) {
        to.Accept(connection, capability, instance);
      },
      /*may_repeat=*/false);
}

void LeaseChannels::Accept(const ConnectionPtr& connection, const std::string& capability,
                           const std::string& instance) {
  if (!incoming_.contains(connection->number)) return;
  const auto it = grants_.find(connection->lease);
  const bool ok = it != grants_.end() && it->second.connection == nullptr && it->second.capability == capability &&
                  it->second.borrower_instance == instance;
  if (!ok) {
    incoming_.erase(connection->number);
    ToBorrower(connection, [connection](LeaseChannels& to) { to.Answer(connection, std::nullopt); });
    return;
  }
  GrantRecord& grant = it->second;
  grant.connection = connection;
  const View view{memory_, grant.first_cell, grant.num_cells, grant.slot, connection->epoch.value()};
  ToBorrower(connection, [connection, view](LeaseChannels& to) { to.Answer(connection, view); });
  events_.OnBorrowerOpened(connection->lease);
}

void LeaseChannels::Answer(const ConnectionPtr& connection, std::optional<View> view) {
  if (Outgoing(connection->lease) != connection) return;
  if (view.has_value()) views_.try_emplace(connection->lease, *view);
  events_.OnOpened(connection->lease, view.has_value());
}

void LeaseChannels::SendRenewal(LeaseId id) {
  if (const ConnectionPtr connection = Outgoing(id)) {
    ToDonor(connection, [id](LeaseChannels& to) { to.events_.OnRenewal(id); });
  }
}

void LeaseChannels::SendRelease(LeaseId id) {
  if (events_.InUse(id)) sim_.Fail(absl::StrCat(instance_, " gives lease ", id.value(), " back and still uses it"));
  if (const ConnectionPtr connection = Outgoing(id)) {
    ToDonor(connection, [id](LeaseChannels& to) { to.events_.OnReleased(id); });
  }
}

void LeaseChannels::Close(LeaseId id) {
  if (events_.InUse(id)) sim_.Fail(absl::StrCat(instance_, " unmaps lease ", id.value(), " and still uses it"));
  const ConnectionPtr connection = Outgoing(id);
  if (connection == nullptr) return sim_.Fail(absl::StrCat("lease ", id.value(), " is closed and was not open"));
  ToDonor(connection, [connection](LeaseChannels& to) { to.BorrowerEnded(connection); });
  outgoing_.erase(id);
  views_.erase(id);
  std::erase_if(stores_, [&](const auto& store) { return store.second == id; });
}

void LeaseChannels::BorrowerEnded(const ConnectionPtr& connection) {
  incoming_.erase(connection->number);
  const auto it = grants_.find(connection->lease);
  if (it == grants_.end() || it->second.connection == connection) events_.OnBorrowerGone(connection->lease);
}

void LeaseChannels::DonorEnded(const ConnectionPtr& connection) {
  if (Outgoing(connection->lease) == connection) {
    std::vector<int64_t> unanswered;
    for (const auto& [ticket, lease] : stores_) {
      if (lease == connection->lease) unanswered.push_back(ticket);
    }
    for (int64_t ticket : unanswered) Finish(ticket, false);
  }
  events_.OnDonorGone(connection->lease);
}

int64_t LeaseChannels::Store(LeaseId id, int64_t first_cell, std::vector<uint64_t> values) {
  const ConnectionPtr connection = Outgoing(id);
  const int64_t ticket = ++last_ticket_;
  stores_[ticket] = id;
  ++tally_.stores;
  ToDonor(
      connection,
      [connection, ticket, first_cell, values = std::move(values)](LeaseChannels& to) {
        to.Receive(connection, ticket, first_cell, values);
      },
      /*may_repeat=*/false);
  return ticket;
}

void LeaseChannels::Receive(const ConnectionPtr& connection, int64_t ticket, int64_t first_cell,
                            const std::vector<uint64_t>& values) {
  const auto it = grants_.find(connection->lease);
  const bool ok = it != grants_.end() && it->second.connection == connection;
  if (ok) std::copy(values.begin(), values.end(), memory_->cells.begin() + it->second.first_cell + first_cell);
  if (!ok) ++tally_.refused_stores;
  ToBorrower(connection, [ticket, ok](LeaseChannels& to) { to.Finish(ticket, ok); });
}

void LeaseChannels::Finish(int64_t ticket, bool ok) {
  if (stores_.erase(ticket) == 1) events_.OnStored(ticket, ok);
}

LeaseChannels::ConnectionPtr LeaseChannels::Outgoing(LeaseId id) const {
  const auto it = outgoing_.find(id);
  return it == outgoing_.end() ? nullptr : it->second;
}

const View* LeaseChannels::Find(LeaseId id) const {
  const auto it = views_.find(id);
  return it == views_.end() ? nullptr : &it->second;
}

}  // namespace swiftcache::sim
