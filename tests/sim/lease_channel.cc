// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/lease_channel.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace swiftcache::sim {

using engine::kv::Epoch;
using engine::transport::GrantSpec;
using engine::transport::OpenSpec;
using engine::transport::Ticket;

void LeaseChannels::Start(const std::string& instance, int64_t num_cells, engine::transport::TransportEvents& events) {
  instance_ = instance;
  events_ = &events;
  directory_[instance] = this;
  memory_ = std::make_shared<Memory>(num_cells);
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
  lease_of_.clear();
  believed_.clear();
  stores_.clear();
  loads_.clear();
  in_step_.clear();
  released_.clear();
  abandoned_.clear();
  revoke_deadlines_.clear();
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
  while (memory_->generations.size() <= slot) memory_->generations.emplace_back(0);
  return slot;
}

absl::StatusOr<Epoch> LeaseChannels::Grant(const GrantSpec& spec) {
  const int64_t first_cell = spec.offset_bytes / kCellBytes % memory_->num_cells();  // see Blindfold
  const int64_t num_cells = spec.bytes / kCellBytes;
  for (int64_t cell = first_cell; cell < first_cell + num_cells; ++cell) {
    if (!loop_.has_given_up(spec.lease, cell)) {
      sim_.Fail(absl::StrCat(instance_, " grants lease ", spec.lease.value(), " memory that kv has not given up"));
    }
    if (granted_[cell] != 0) {
      sim_.Fail(absl::StrCat(instance_, " grants cell ", cell, " to lease ", spec.lease.value(), " and to lease ",
                             granted_[cell]));
    }
    granted_[cell] = spec.lease.value();
  }
  const size_t slot = FreeSlot();
  memory_->generations[slot] = ++last_generation_;
  grants_[spec.lease] = {slot, first_cell, num_cells, spec.borrower_instance, spec.capability, nullptr};
  ++tally_.grants;
  return Epoch(last_generation_);
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
  revoke_deadlines_[id] = process_.LocalNow() + time_left;
  const auto it = grants_.find(id);
  if (it == grants_.end() || it->second.connection == nullptr) return;
  ToBorrower(it->second.connection, [id, time_left](LeaseChannels& to) { to.events_->OnRevoked(id, time_left); });
}

std::optional<absl::Time> LeaseChannels::TakeRevokeDeadline(LeaseId id) {
  const auto revoked = revoke_deadlines_.extract(id);
  return revoked.empty() ? std::nullopt : std::optional(revoked.mapped());
}

void LeaseChannels::SendRenewed(LeaseId id) {
  const auto it = grants_.find(id);
  if (it == grants_.end() || it->second.connection == nullptr) return;
  ToBorrower(it->second.connection, [id](LeaseChannels& to) { to.events_->OnRenewed(id); });
}

void LeaseChannels::Open(const OpenSpec& spec) {
  const auto connection = std::make_shared<Connection>();
  connection->lease = spec.lease;
  connection->epoch = spec.epoch;
  connection->number = int64_t{endpoint_} << 32 | ++last_connection_;
  connection->borrower = this;
  if (outgoing_.contains(spec.lease)) sim_.Fail(absl::StrCat("lease ", spec.lease.value(), " is opened twice"));
  outgoing_[spec.lease] = connection;
  const auto donor = directory_.find(spec.channel);
  if (donor == directory_.end()) {
    process_.After(network_.Delay(), [this, connection] { Answer(connection, std::nullopt); });
    return;
  }
  connection->donor = donor->second;
  connection->donor->incoming_[connection->number] = connection;
  ToDonor(
      connection,
      [connection, capability = spec.capability, instance = instance_](LeaseChannels& to) {
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
  events_->OnBorrowerOpened(connection->lease);
}

void LeaseChannels::Answer(const ConnectionPtr& connection, std::optional<View> view) {
  if (Outgoing(connection->lease) != connection) return;
  if (!view.has_value()) return events_->OnOpened(connection->lease, absl::UnavailableError("the donor refuses"));
  sim_.Trace([&] { return absl::StrCat(instance_, ": maps lease ", connection->lease.value()); });
  views_.try_emplace(connection->lease, *view);
  const std::atomic<uint64_t>* word = &view->memory->generations[view->slot];
  if (bug_ == PlantedBug::kNoGenerationCheck) {
    word = &believed_.try_emplace(connection->lease, view->epoch).first->second;
  }
  lease_of_[{word, view->epoch}] = connection->lease;
  events_->OnOpened(connection->lease, engine::transport::LeaseView{.base = view->memory->At(view->first_cell),
                                                                    .bytes = view->num_cells * kCellBytes,
                                                                    .word = {.word = word, .granted = view->epoch}});
}

void LeaseChannels::SendRenewal(LeaseId id, int64_t heat) {
  ++tally_.renewals;
  if (const ConnectionPtr connection = Outgoing(id)) {
    ToDonor(connection, [id, heat](LeaseChannels& to) { to.events_->OnRenewal(id, heat); });
  }
}

void LeaseChannels::SendRelease(LeaseId id) {
  if (IsRead(id)) sim_.Fail(absl::StrCat(instance_, " gives lease ", id.value(), " back and still uses it"));
  sim_.Trace([&] { return absl::StrCat(instance_, ": gives back lease ", id.value()); });
  released_.insert(id);
  if (const ConnectionPtr connection = Outgoing(id)) {
    ToDonor(connection, [id](LeaseChannels& to) { to.events_->OnReleased(id); });
  }
}

// What waits for a donor is answered without it.
void LeaseChannels::Abandon(LeaseId id) {
  sim_.Trace([&] { return absl::StrCat(instance_, ": abandons lease ", id.value()); });
  abandoned_.insert(id);
  for (const int64_t ticket : StoresTo(id)) process_.After(network_.Delay(), [this, ticket] { Finish(ticket, false); });
}

void LeaseChannels::Close(LeaseId id) {
  if (loop_.knows(id) || IsRead(id))
    sim_.Fail(absl::StrCat(instance_, " unmaps lease ", id.value(), " and still uses it"));
  sim_.Trace([&] { return absl::StrCat(instance_, ": unmaps lease ", id.value()); });
  const ConnectionPtr connection = Outgoing(id);
  if (connection == nullptr) return sim_.Fail(absl::StrCat("lease ", id.value(), " is closed and was not open"));
  ToDonor(connection, [connection](LeaseChannels& to) { to.BorrowerEnded(connection); });
  outgoing_.erase(id);
  std::erase_if(lease_of_, [id](const auto& known) { return known.second == id; });
  believed_.erase(id);
  views_.erase(id);
  released_.erase(id);
  abandoned_.erase(id);
  for (const int64_t ticket : StoresTo(id)) stores_.erase(ticket);
}

void LeaseChannels::BorrowerEnded(const ConnectionPtr& connection) {
  incoming_.erase(connection->number);
  const auto it = grants_.find(connection->lease);
  if (it == grants_.end() || it->second.connection == connection) events_->OnBorrowerGone(connection->lease);
}

void LeaseChannels::DonorEnded(const ConnectionPtr& connection) {
  if (Outgoing(connection->lease) == connection) {
    for (const int64_t ticket : StoresTo(connection->lease)) Finish(ticket, false);
  }
  events_->OnDonorGone(connection->lease);
}

std::vector<int64_t> LeaseChannels::StoresTo(LeaseId id) const {
  std::vector<int64_t> tickets;
  for (const auto& [ticket, store] : stores_) {
    if (store.to == id) tickets.push_back(ticket);
  }
  return tickets;
}

void LeaseChannels::Finish(int64_t ticket, bool ok) {
  if (stores_.erase(ticket) == 0) return;
  events_->OnStored(Ticket(ticket), ok ? absl::OkStatus() : absl::FailedPreconditionError("the lease was fenced"));
}

LeaseChannels::ConnectionPtr LeaseChannels::Outgoing(LeaseId id) const {
  const auto it = outgoing_.find(id);
  return it == outgoing_.end() ? nullptr : it->second;
}

// Null: it is not open.
const View* LeaseChannels::Find(LeaseId id) const {
  if (released_.contains(id)) sim_.Fail(absl::StrCat(instance_, " looks at lease ", id.value(), ", given back"));
  const auto it = views_.find(id);
  return it == views_.end() ? nullptr : &it->second;
}

}  // namespace swiftcache::sim
