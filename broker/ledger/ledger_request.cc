// SPDX-License-Identifier: Apache-2.0
// Ledger, the part that decides which donor's memory goes to which borrower.
#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "broker/elastic/fair_share.h"
#include "broker/ledger/carve.h"
#include "broker/ledger/holding.h"
#include "broker/ledger/ledger.h"
#include "broker/ledger/pairing.h"
#include "common/base/status_macros.h"
#include "common/base/units.h"

namespace swiftcache::broker::ledger {
namespace {

constexpr size_t kMaxKeyBytes = 128;

absl::Status CheckRequest(const LeaseRequest& request) {
  if (request.key.empty() || request.key.size() > kMaxKeyBytes) {
    return absl::InvalidArgumentError(absl::StrCat("request_key has ", request.key.size(), " bytes, wanted 1 to ",
                                                   kMaxKeyBytes, ", another for every request"));
  }
  if (request.want_bytes < 1) {
    return absl::InvalidArgumentError(absl::StrCat("want_bytes is ", request.want_bytes, ", wanted more than 0"));
  }
  if (request.waiting_tokens < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("waiting_tokens is ", request.waiting_tokens, ", wanted at least 0"));
  }
  return absl::OkStatus();
}

}  // namespace

int64_t Ledger::Sources::free_bytes() const {
  int64_t bytes = 0;
  for (const Source& source : list) bytes += source.free_bytes();
  return bytes;
}

bool Ledger::Sources::Has(const Party& donor) const {
  return std::any_of(list.begin(), list.end(),
                     [&](const Source& source) { return source.donor->engine.party == donor; });
}

absl::StatusOr<LeaseResponse> Ledger::RequestLease(const Party& who, const LeaseRequest& request, absl::Time now) {
  ASSIGN_OR_RETURN(Member * member, FindMember(who));
  RETURN_IF_ERROR(CheckRequest(request));
  Tick(now);
  Sources sources = SourcesFor(*member, now);
  if (const auto it = member->requests.find(request.key); it != member->requests.end()) {
    LeaseResponse again{.leases = Alive(it->second), .shortage = "", .lendable_bytes = 0, .units = {}};
    again.lendable_bytes = std::min(sources.free_bytes(), QuotaLeft(member->engine.model_name));
    if (again.leases.size() < it->second.size()) again.shortage = "leases of this request have ended since";
    return again;
  }
  Allocation allocation{.asked = request.want_bytes, .quota = QuotaLeft(member->engine.model_name)};
  const std::vector<LeaseId> ids = AllocateLeases(allocation, *member, request.waiting_tokens, sources, now);
  Remember(*member, request.key, ids);
  const int64_t quota_left = QuotaLeft(member->engine.model_name);
  return LeaseResponse{.leases = Alive(ids),
                       .shortage = ExplainShortage(allocation, member->engine, sources),
                       .lendable_bytes = std::min(sources.free_bytes(), quota_left),
                       .units = std::move(sources.units)};
}

// Offers the borrower what is free of its share, and takes back for it what others hold of its share.
std::vector<LeaseId> Ledger::AllocateLeases(Allocation& allocation, Member& member, int64_t waiting_tokens,
                                            Sources& sources, absl::Time now) {
  allocation.max_leases = MaxLeases(member.engine.party);
  const int64_t want = allocation.max_leases == 0 ? 0 : std::min(allocation.asked, allocation.quota);
  member.waiting_tokens = waiting_tokens;
  member.requested_at = now;
  std::map<Party, int64_t> shares;
  allocation.share = ShareOf(member, want, sources, now, &shares);
  allocation.held = HeldBytes(member.engine.party, sources);
  const int64_t due = std::min(want, std::max<int64_t>(0, allocation.share - allocation.held));
  const std::vector<LeaseId> ids = Offer(member, due, allocation, sources, now);
  for (const LeaseId id : ids) allocation.got += table_.Find(id)->lease.num_bytes;
  allocation.full = !ids.empty() && ids.size() == allocation.max_leases;
  member.unmet_bytes = std::max<int64_t>(0, want - allocation.got);
  const bool starved = allocation.held + allocation.got < allocation.share / 4 * 3;
  if (!allocation.full) allocation.coming = Rebalance(member, due - allocation.got, starved, sources, shares, now);
  return ids;
}

std::string Ledger::ExplainShortage(const Allocation& allocation, const Engine& borrower, const Sources& sources) {
  if (allocation.got >= allocation.asked || allocation.full) return "";
  std::string why = "donors have no more to lend now";
  if (borrower.channel.empty()) {
    why = "this engine shares no memory: it has no lease channel";
  } else if (allocation.max_leases == 0) {
    why = absl::StrCat("this engine borrows on ", kMaxLeasesPerSide, " leases, the most; give --max_lease_bytes more");
  } else if (allocation.quota < allocation.asked && allocation.quota <= allocation.share - allocation.held) {
    why = absl::StrCat("the limit on model '", borrower.model_name, "' leaves ", allocation.quota,
                       " bytes (swiftcachectl lease limit changes it)");
  } else if (sources.list.empty()) {
    why = absl::StrCat("no other engine of node '", borrower.node_id, "' lends memory");
  } else if (allocation.share - allocation.held < allocation.asked) {
    why = absl::StrCat("donors have no more, or others lack memory too: the share of ", borrower.party.name, " is ",
                       allocation.share, " bytes, it held ", allocation.held, "; ", allocation.coming,
                       " are being taken back for it");
  }
  for (const PairUnit& pair : sources.units) {
    if (!pair.unit.ok()) absl::StrAppend(&why, "; ", pair.donor, ": ", pair.unit.status().message());
  }
  return why;
}

Ledger::Sources Ledger::SourcesFor(const Member& borrower, absl::Time now) {
  Sources sources;
  for (auto& [name, donor] : members_) {
    if (donor.policy == nullptr || !MayShare(donor.engine, borrower.engine)) continue;
    const absl::StatusOr<elastic::ElasticUnit> unit = UnitOf(donor.engine, borrower.engine);
    sources.units.push_back({.donor = name, .unit = unit});
    if (!unit.ok()) continue;
    const Party& party = donor.engine.party;
    const int64_t lent = table_.LentBlocks(party);
    const int64_t lendable =
        donor.policy->LendableBlocks(lent, {.worker = unit->donor_blocks, .master = unit->borrower_blocks}, now);
    Source source{.donor = &donor, .unit = *unit, .taken = table_.ExtentsOf(party)};
    source.region = {.first_block = donor.engine.num_blocks - lendable, .num_blocks = lendable};
    source.free_units = std::max<int64_t>(0, lendable - lent) / unit->donor_blocks;
    for (const Backoff& backoff : backoffs_) {
      if (backoff.donor == party) source.taken.push_back(backoff.extent);
    }
    sources.list.push_back(std::move(source));
  }
  return sources;
}

int64_t Ledger::HeldBytes(const Party& borrower, const Sources& sources) const {
  int64_t bytes = 0;
  for (const auto& [id, record] : table_.all()) {
    const Lease& lease = record.lease;
    const bool counts = lease.borrower == borrower && lease.state != LeaseState::kRevoking;
    if (counts && sources.Has(lease.donor)) bytes += lease.num_bytes;
  }
  return bytes;
}

const Ledger::Member* Ledger::FindBorrower(const Party& borrower) const {
  const auto it = members_.find(borrower.name);
  return it == members_.end() || it->second.engine.party != borrower ? nullptr : &it->second;
}

// Nothing runs or waits there and it asks for no more, or it is gone: no request needs what it holds now.
bool Ledger::OnlyCaches(const Party& borrower, absl::Time now) const {
  const Member* member = FindBorrower(borrower);
  return member == nullptr || (member->idle && !HasOpenRequest(*member, now));
}

int64_t Ledger::WeightOf(const Party& borrower, bool against_need, absl::Time now) const {
  const Member* member = FindBorrower(borrower);
  if (member == nullptr || (against_need && OnlyCaches(borrower, now))) return 1;
  return CheckedAdd(elastic::kBaseWeightTokens, HasOpenRequest(*member, now) ? member->waiting_tokens : 0)
      .value_or(INT64_MAX);
}

// Weighted max-min over all engines that hold or ask for memory of these sources: what each may hold in all.
int64_t Ledger::ShareOf(const Member& borrower, int64_t want_bytes, const Sources& sources, absl::Time now,
                        std::map<Party, int64_t>* shares) {
  int64_t pool = sources.free_bytes();
  for (const auto& [id, record] : table_.all()) {
    if (sources.Has(record.lease.donor)) pool += record.lease.num_bytes;
  }
  std::vector<Party> parties;
  std::vector<elastic::ShareClaim> claims;
  for (const auto& [name, member] : members_) {
    if (member.engine.node_id != borrower.engine.node_id) continue;
    const Party& party = member.engine.party;
    const bool asks = &member == &borrower;
    const int64_t unmet = asks ? want_bytes : HasOpenRequest(member, now) ? member.unmet_bytes : 0;
    const int64_t wanted = CheckedAdd(HeldBytes(party, sources), unmet).value_or(INT64_MAX);
    if (wanted == 0) continue;
    parties.push_back(party);
    // Weights of 2^40 tokens leave room for their sum.
    const int64_t weight = WeightOf(party, /*against_need=*/borrower.waiting_tokens > 0, now);
    claims.push_back({.weight = std::min(weight, int64_t{1} << 40), .wanted_bytes = wanted});
  }
  const std::vector<int64_t> parts = elastic::FairShares(pool, claims);
  for (size_t i = 0; i < parties.size(); ++i) (*shares)[parties[i]] = parts[i];
  return (*shares)[borrower.engine.party];
}

int64_t Ledger::QuotaLeft(const std::string& model_name) const {
  const auto it = limits_.find(model_name);
  if (it == limits_.end()) return INT64_MAX;
  return std::max<int64_t>(0, it->second - BorrowedBytes(model_name));
}

size_t Ledger::MaxLeases(const Party& borrower) const {
  const size_t held = table_.Where([&](const Record& record) { return record.lease.borrower == borrower; }).size();
  return std::min(kMaxLeasesPerResponse, kMaxLeasesPerSide - std::min(kMaxLeasesPerSide, held));
}

std::vector<LeaseId> Ledger::Offer(const Member& borrower, int64_t want_bytes, const Allocation& allocation,
                                   Sources& sources, absl::Time now) {
  std::vector<LeaseId> ids;
  int64_t got = 0;
  while (got < want_bytes && ids.size() < allocation.max_leases) {
    const auto source = std::max_element(sources.list.begin(), sources.list.end(),
                                         [](const auto& a, const auto& b) { return a.free_bytes() < b.free_bytes(); });
    if (source == sources.list.end() || source->free_units < 1) break;
    const int64_t unit_bytes = source->unit.bytes;
    const int64_t units =
        std::min({CeilDiv(want_bytes - got, unit_bytes), source->free_units,
                  std::max<int64_t>(1, options_.max_lease_bytes / unit_bytes), (allocation.quota - got) / unit_bytes});
    const std::optional<LeaseId> id = units < 1 ? std::nullopt : OfferFrom(*source, borrower, units, now);
    if (!id.has_value()) {
      source->free_units = 0;
      continue;
    }
    got += table_.Find(*id)->lease.num_bytes;
    ids.push_back(*id);
  }
  return ids;
}

std::optional<LeaseId> Ledger::OfferFrom(Source& source, const Member& borrower, int64_t max_units, absl::Time now) {
  if (source.taken.size() >= kMaxLeasesPerSide) return std::nullopt;
  const Engine& donor = source.donor->engine;
  const std::optional<Extent> extent =
      CarveFromTail(source.region, source.taken,
                    {.unit_blocks = source.unit.donor_blocks,
                     .step_blocks = elastic::PageStepBlocks(donor.block_bytes, donor.page_bytes),
                     .max_units = max_units});
  if (!extent.has_value()) return std::nullopt;
  const int64_t num_bytes = extent->num_blocks * donor.block_bytes;
  const Lease lease{.id = NewId(),
                    .donor = donor.party,
                    .borrower = borrower.engine.party,
                    .extent = *extent,
                    .num_bytes = num_bytes,
                    .borrower_blocks = num_bytes / borrower.engine.block_bytes,
                    .epoch = std::nullopt,
                    .state = LeaseState::kOffered,
                    .channel = donor.channel,
                    .capability = new_capability_()};
  table_.Insert({.lease = lease, .entered = now, .answer_by = now + options_.offer_timeout});
  source.taken.push_back(*extent);
  source.free_units -= extent->num_blocks / source.unit.donor_blocks;
  return lease.id;
}

LeaseId Ledger::NewId() {
  LeaseId id;
  do {
    id = LeaseId(int64_t{options_.id_prefix & 0x7fffffff} << 32 | ++last_id_);
  } while (table_.Find(id) != nullptr);
  return id;
}

// Revokes for `borrower` what others hold above their shares; returns the bytes on their way back. So that leases do
// not move to and fro, a borrower that is not starved gets only memory of idle borrowers, and only if tokens wait.
int64_t Ledger::Rebalance(const Member& borrower, int64_t lacking_bytes, bool starved, const Sources& sources,
                          const std::map<Party, int64_t>& shares, absl::Time now) {
  int64_t coming = 0;
  std::map<Party, Holding> above;
  for (const auto& [id, record] : table_.all()) {
    const Lease& lease = record.lease;
    if (lease.borrower == borrower.engine.party || !sources.Has(lease.donor)) continue;
    if (lease.state == LeaseState::kRevoking) coming += lease.num_bytes;
    const bool ripe = lease.epoch.has_value() && now - record.entered >= options_.min_hold;
    const bool yields = starved || (borrower.waiting_tokens > 0 && OnlyCaches(lease.borrower, now));
    if (lease.state != LeaseState::kRevoking && ripe && yields) above[lease.borrower].leases.push_back(&lease);
  }
  for (auto& [party, holding] : above) {
    const auto share = shares.find(party);
    holding.bytes = HeldBytes(party, sources) - (share == shares.end() ? 0 : share->second);
    std::sort(holding.leases.begin(), holding.leases.end(), Innermost);
  }
  const auto may = [](const Holding& holding) {  // and is not below its share afterwards
    return !holding.leases.empty() && holding.leases.front()->num_bytes <= holding.bytes;
  };
  while (coming < lacking_bytes) {
    Holding* most = MostAbove(above, may);
    if (most == nullptr) break;
    const Lease& victim = most->Pop();
    coming += victim.num_bytes;
    BeginRevoking(victim.id);
  }
  return coming;
}

void Ledger::Remember(Member& member, const std::string& key, std::vector<LeaseId> ids) {
  member.requests[key] = std::move(ids);
  member.request_order.push_back(key);
  while (member.request_order.size() > options_.max_remembered_requests) {
    member.requests.erase(member.request_order.front());
    member.request_order.pop_front();
  }
}

std::vector<Lease> Ledger::Alive(const std::vector<LeaseId>& ids) {
  std::vector<Lease> leases;
  for (const LeaseId id : ids) {
    if (const Record* record = table_.Find(id)) leases.push_back(record->lease);
  }
  return leases;
}

}  // namespace swiftcache::broker::ledger
