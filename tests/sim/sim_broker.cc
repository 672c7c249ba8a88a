// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/sim_broker.h"

#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"

namespace swiftcache::sim {

namespace ledger = broker::ledger;
using engine::lease::Lease;

Lease ToEngineLease(const ledger::Lease& lease) {
  return {.id = engine::kv::LeaseId(lease.id.value()),
          .donor = lease.donor.name,
          .donor_instance = lease.donor.instance_id,
          .borrower = lease.borrower.name,
          .borrower_instance = lease.borrower.instance_id,
          .borrower_model = lease.borrower_model,
          .extent = {lease.extent.first_block, lease.extent.num_blocks},
          .num_bytes = lease.num_bytes,
          .borrower_blocks = lease.borrower_blocks,
          .epoch = engine::kv::Epoch(lease.epoch.value_or(ledger::Epoch(0)).value()),
          .state = static_cast<engine::lease::State>(lease.state),
          .channel = lease.channel,
          .capability = lease.capability};
}

ledger::Lease ToBrokerLease(const Lease& lease) {
  ledger::Lease result{.id = ledger::LeaseId(lease.id.value()),
                       .donor = {lease.donor, lease.donor_instance},
                       .borrower = {lease.borrower, lease.borrower_instance},
                       .borrower_model = lease.borrower_model,
                       .extent = {lease.extent.first_block, lease.extent.num_blocks},
                       .num_bytes = lease.num_bytes,
                       .borrower_blocks = lease.borrower_blocks,
                       .epoch = std::nullopt,
                       .state = static_cast<ledger::LeaseState>(lease.state),
                       .channel = lease.channel,
                       .capability = lease.capability};
  if (lease.state != engine::lease::State::kOffered) result.epoch = ledger::Epoch(lease.epoch.value());
  return result;
}

SimBroker::SimBroker(Simulator& sim, Network& network, PlantedBug bug)
    : sim_(sim), network_(network), bug_(bug), process_(sim) {
  process_.after_each = [this] { AfterEach(); };
}

void SimBroker::Start() {
  process_.Start();
  incarnation_ = absl::StrCat("broker-", sim_.random.Next());
  const ledger::Options options{.elastic = {.window = absl::Milliseconds(300)},
                                .id_prefix = static_cast<uint32_t>(sim_.random.Next() >> 33),
                                .max_lease_bytes = 12 * kCellBytes,
                                .offer_timeout = kHeartbeat * 3,
                                .decline_backoff = kHeartbeat * 2,
                                .request_ttl = kHeartbeat * 5,
                                .min_hold = kHeartbeat * 2};
  tables_.emplace(broker::loop::Tables::Options{
      .membership = {.heartbeat_interval = kHeartbeat, .heartbeat_misses = 3},
      .ledger = options,
      .incarnation = incarnation_,
      .new_capability = [this] { return absl::StrCat("capability-", ++last_capability_, sim_.random.Next()); }});
  planned_tick_ = 0;
}

void SimBroker::Die() {
  process_.Kill();
  streams_.clear();
  told_.clear();
}

// As the loop does after a sleep in which it could not hear.
void SimBroker::Continue() {
  if (!process_.stopped()) return;
  tables_->PostponeDeadlines(Now() - last_awake_);
  process_.Continue();
}

void SimBroker::RevokeOne() {
  const std::vector<ledger::Lease> leases = tables_->leases().Snapshot();
  if (leases.empty()) return;
  const ledger::LeaseId id = leases[sim_.random.Below(static_cast<int64_t>(leases.size()))].id;
  const absl::Status status = tables_->RevokeLease(id, Now());
  if (!status.ok()) sim_.Fail(absl::StrCat("the operator's revocation: ", status.ToString()));
}

void SimBroker::Watch(int endpoint, const std::string& instance, int64_t number, Process& to, OnWord on_word) {
  const auto it = streams_.find(endpoint);
  if (it != streams_.end() && it->second.life == to.life() && it->second.number > number) return;
  streams_[endpoint] = {
      .pipe = {}, .instance = instance, .number = number, .to = &to, .life = to.life(), .on_word = std::move(on_word)};
  const broker::loop::WatchEvent event = tables_->Snapshot(instance);
  const auto& own = std::get<broker::loop::WatchEvent::Snapshot>(event.what);
  WatchWord snapshot{.incarnation = incarnation_, .snapshot = true, .leases = {}, .limits = own.limits};
  for (const ledger::Lease& lease : own.leases) {
    const auto told = told_.find(LeaseId(lease.id.value()));
    snapshot.leases.push_back(told == told_.end() ? ToEngineLease(lease) : told->second);
  }
  Tell(endpoint, std::move(snapshot));
}

void SimBroker::Tell(int endpoint, WatchWord word) {
  Stream& stream = streams_.at(endpoint);
  if (stream.life != stream.to->life()) return;
  network_.SendInOrder(
      stream.pipe, kEndpoint, endpoint, *stream.to,
      [on_word = stream.on_word, word = std::move(word)] { on_word(word); }, /*may_repeat=*/false);
}

void SimBroker::AfterEach() {
  last_awake_ = Now();
  tables_->Tick(last_awake_);
  const std::vector<broker::loop::TableChange> changes = tables_->TakeChanges();
  for (const broker::loop::TableChange& change : changes) Publish(change);
  const absl::Status sound = changes.empty() ? absl::OkStatus() : tables_->leases().CheckInvariants();
  if (!sound.ok()) sim_.Fail(sound.ToString());
  PlanTick();
}

void SimBroker::Publish(const broker::loop::TableChange& change) {
  if (const auto* limit = std::get_if<ledger::LeaseLimit>(&change.event.what)) {
    for (const auto& [endpoint, stream] : streams_) Tell(endpoint, {.incarnation = incarnation_, .limits = {*limit}});
  }
  const auto* told = std::get_if<ledger::Lease>(&change.event.what);
  if (told == nullptr) return;  // of engines
  Lease lease = ToEngineLease(*told);
  const bool leases_twice = bug_ == PlantedBug::kLeaseTwice || bug_ == PlantedBug::kBrokerLeasesTwice;
  if (const auto it = told_.find(lease.id); it != told_.end()) lease.extent = it->second.extent;
  if (leases_twice && lease.state == engine::lease::State::kOffered) {
    for (const auto& [id, other] : told_) {
      const bool same_shape =
          other.donor_instance == lease.donor_instance && other.extent.num_blocks == lease.extent.num_blocks;
      if (same_shape && other.state == engine::lease::State::kGranted) lease.extent = other.extent;
    }
  }
  sim_.Trace([&] {
    return absl::StrCat("broker: lease ", lease.id.value(), " ", lease.donor_instance, " -> ", lease.borrower_instance,
                        " blocks ", lease.extent.first_block, "+", lease.extent.num_blocks, " ",
                        StateName(lease.state));
  });
  if (ledger::HasEnded(told->state)) {
    told_.erase(lease.id);
  } else {
    if (!leases_twice) CheckToldLease(lease);
    told_[lease.id] = lease;
  }
  if (told->state == ledger::LeaseState::kRevoking) asked_for_.emplace(lease.id, *told->revoke_reason);
  for (const auto& [endpoint, stream] : streams_) {
    const bool own = stream.instance == lease.donor_instance || stream.instance == lease.borrower_instance;
    if (own) Tell(endpoint, {.incarnation = incarnation_, .leases = {lease}});
  }
}

// One owner per extent, in the broker's word.
void SimBroker::CheckToldLease(const Lease& lease) {
  for (const auto& [id, other] : told_) {
    if (id != lease.id && other.donor_instance == lease.donor_instance && Overlap(other.extent, lease.extent)) {
      sim_.Fail(absl::StrCat("the broker leases an extent twice: ", id.value(), " and ", lease.id.value()));
    }
  }
}

void SimBroker::PlanTick() {
  const absl::Time next = tables_->NextDeadline();
  if (next == absl::InfiniteFuture()) return;
  const Micros when = process_.WhenLocal(next);
  if (planned_tick_ > sim_.now() && planned_tick_ <= when) return;
  planned_tick_ = when;
  process_.At(when, [] {});  // AfterEach does the rest
}

}  // namespace swiftcache::sim
