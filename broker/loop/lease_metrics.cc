// SPDX-License-Identifier: Apache-2.0
#include "broker/loop/lease_metrics.h"

#include <array>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "common/log/log.h"

namespace swiftcache::broker::loop {
namespace {

using ledger::LeaseState;

constexpr char kGranted[] = "swiftcache_lease_granted_total", kRevoked[] = "swiftcache_lease_revoked_total",
               kFenced[] = "swiftcache_lease_fenced_total";

// The counter for a change of a lease's state, or null.
const char* NameOf(LeaseState state) {
  switch (state) {
    case LeaseState::kGranted:
      return kGranted;
    case LeaseState::kRevoking:
      return kRevoked;
    case LeaseState::kFenced:
      return kFenced;
    default:
      return nullptr;
  }
}

prometheus::Counter& StepsOf(Metrics& pair, const char* name) {
  return pair.Counter(name, "Leases that took this step");
}

// What pairs of the same engine share: engine and direction of each of the two.
std::array<std::pair<std::string, std::string>, 2> SidesOf(const std::pair<std::string, std::string>& pair) {
  return {std::pair(pair.first, "out"), std::pair(pair.second, "in")};
}

std::string Describe(const absl::StatusOr<elastic::ElasticUnit>& unit) {
  if (!unit.ok()) return absl::StrCat("cannot share memory: ", unit.status().message());
  if (!unit->padded()) return absl::StrCat("exact elastic unit of ", unit->bytes, " bytes");
  return absl::StrCat("padded elastic unit of ", unit->bytes, " bytes, ", unit->wasted_bytes, " of them wasted");
}

}  // namespace

LeaseMetrics::LeaseMetrics(Metrics& metrics)
    : metrics_(metrics),
      scale_up_(metrics.Counter("swiftcache_scale_up_total", "Donors told which leases to take back")),
      scale_down_(metrics.Counter("swiftcache_scale_down_total", "Requests of borrowers that were offered memory")) {}

void LeaseMetrics::Note(const ledger::Lease& lease, std::optional<LeaseState> before) {
  LOG(INFO) << "lease " << lease.id << " " << (before.has_value() ? ledger::StateName(*before) : "new") << " -> "
            << ledger::StateName(lease.state) << " donor=" << lease.donor.name << " borrower=" << lease.borrower.name
            << " blocks=" << lease.extent.first_block << "+" << lease.extent.num_blocks << " bytes=" << lease.num_bytes
            << (lease.state == LeaseState::kRevoking ? absl::StrCat(" for=", ledger::ReasonName(*lease.revoke_reason))
                                                     : "");
  const Names names(lease.donor.name, lease.borrower.name);
  if (!before.has_value()) {
    Begin(names);
    return AddLeased(names, lease.num_bytes);
  }
  if (*before == lease.state) return;
  if (const char* name = NameOf(lease.state)) StepsOf(*pairs_.at(names).metrics, name).Increment();
  if (!ledger::HasEnded(lease.state)) return;
  AddLeased(names, -lease.num_bytes);
  End(names);
}

void LeaseMetrics::Begin(const Names& names) {
  const auto [it, is_new] = pairs_.try_emplace(names);
  Pair& pair = it->second;
  if (is_new) {
    pair.metrics = metrics_.Part({{"donor", names.first}, {"borrower", names.second}});
    for (const char* name : {kGranted, kRevoked, kFenced}) StepsOf(*pair.metrics, name);
    for (const Names& name : SidesOf(names)) {
      Side& side = sides_[name];
      if (++side.pairs == 1) side.metrics = metrics_.Part({{"engine", name.first}, {"direction", name.second}});
    }
  } else if (pair.leases == 0) {
    idle_.erase(pair.idle);
  }
  ++pair.leases;
}

void LeaseMetrics::End(const Names& names) {
  Pair& pair = pairs_.at(names);
  if (--pair.leases > 0) return;
  pair.idle = idle_.insert(idle_.end(), names);
  if (idle_.size() <= kIdlePairs) return;
  const Names oldest = idle_.front();
  idle_.pop_front();
  pairs_.erase(oldest);
  for (const Names& side : SidesOf(oldest)) {
    if (--sides_.at(side).pairs == 0) sides_.erase(side);
  }
}

void LeaseMetrics::NoteRequest(const std::string& borrower, const ledger::LeaseResponse& answer) {
  if (!answer.leases.empty() && !answer.units.empty()) scale_down_.Increment();
  for (const ledger::PairUnit& pair : answer.units) {
    const std::string description = Describe(pair.unit);
    const std::pair names(pair.donor, borrower);
    auto known = units_.find(names);
    if (known == units_.end()) known = units_.emplace(names, NewUnit(pair.donor, borrower)).first;
    if (known->second.told == description) continue;
    known->second.told = description;
    LOG(INFO) << "donor " << pair.donor << " and borrower " << borrower << ": " << description;
    const elastic::ElasticUnit unit = pair.unit.ok() ? *pair.unit : elastic::ElasticUnit{};
    known->second.bytes.Set(static_cast<double>(unit.bytes));
    known->second.wasted.Set(static_cast<double>(unit.wasted_bytes));
  }
}

LeaseMetrics::Unit LeaseMetrics::NewUnit(const std::string& donor, const std::string& borrower) {
  const Metrics::Labels labels = {{"donor", donor}, {"borrower", borrower}};
  return {.told = "",
          .bytes = metrics_.OptionalGauge("swiftcache_elastic_unit_bytes",
                                          "Bytes of one elastic unit; 0: the pair has none", labels),
          .wasted = metrics_.OptionalGauge("swiftcache_elastic_unit_wasted_bytes",
                                           "Bytes of one elastic unit that padding wastes", labels)};
}

void LeaseMetrics::EngineRemoved(const std::string& engine) {
  for (auto unit = units_.begin(); unit != units_.end();) {
    const auto next = std::next(unit);
    if (unit->first.first == engine || unit->first.second == engine) {
      unit->second.bytes.Set(std::nullopt);
      unit->second.wasted.Set(std::nullopt);
      units_.erase(unit);
    }
    unit = next;
  }
}

void LeaseMetrics::NoteScaleUp(size_t leases) {
  if (leases > 0) scale_up_.Increment();
}

void LeaseMetrics::AddLeased(const Names& names, int64_t bytes) {
  for (const Names& side : SidesOf(names)) {
    sides_.at(side)
        .metrics
        ->Gauge("swiftcache_leased_bytes", "Bytes on lease that have not ended, by donor (out) and borrower (in)")
        .Increment(static_cast<double>(bytes));
  }
}

}  // namespace swiftcache::broker::loop
