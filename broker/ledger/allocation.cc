// SPDX-License-Identifier: Apache-2.0
#include "broker/ledger/allocation.h"

#include <algorithm>
#include <deque>
#include <utility>

#include "absl/strings/str_cat.h"
#include "broker/elastic/fair_share.h"
#include "broker/ledger/carve.h"
#include "broker/ledger/yielder.h"
#include "common/base/status_macros.h"
#include "common/base/units.h"

namespace swiftcache::broker::ledger {
namespace {

constexpr size_t kMaxKeyBytes = 128;
constexpr absl::Duration kHearing = absl::Seconds(1);  // by then an engine has heard of a lease that was granted to it
constexpr int64_t kMaxLeaseOfSmallArena = int64_t{16} << 20;
constexpr int64_t kMaxUnseenBytes = int64_t{1} << 60;  // whatever an engine says: sums with it do not overflow

// Of one lease. In whole elastic units it may be half of this: so many leases of half as much are an arena.
int64_t MaxLeaseBytes(const Options& options, const Engine& donor) {
  if (options.max_lease_bytes > 0) return options.max_lease_bytes;
  return std::max(kMaxLeaseOfSmallArena,
                  donor.num_blocks * donor.block_bytes / static_cast<int64_t>(kMaxLeasesPerSide / 2));
}

absl::Status CheckRequest(const LeaseRequest& request) {
  if (request.key.empty() || request.key.size() > kMaxKeyBytes) {
    return absl::InvalidArgumentError(absl::StrCat("request_key has ", request.key.size(), " bytes, wanted 1 to ",
                                                   kMaxKeyBytes, ", another for every request"));
  }
  if (request.want_bytes < 1) {
    return absl::InvalidArgumentError(absl::StrCat("want_bytes is ", request.want_bytes, ", wanted more than 0"));
  }
  if (request.waiting_tokens < 0 || request.held_bytes < 0) {
    return absl::InvalidArgumentError(absl::StrCat("waiting_tokens is ", request.waiting_tokens, ", held_bytes ",
                                                   request.held_bytes, ", wanted neither below 0"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<LeaseResponse> Allocation::Request(Member& borrower, const LeaseRequest& request, absl::Time now) {
  RETURN_IF_ERROR(CheckRequest(request));
  Case served{.borrower = borrower,
              .sources = FindSources(table_, members_, borrower.engine, now),
              .now = now,
              .asked = request.want_bytes};
  const Holding& seen = table_.BorrowedBy(borrower.id);  // it holds no offers yet
  served.unseen = std::clamp<int64_t>(request.held_bytes - (seen.bytes - seen.offered_bytes), 0, kMaxUnseenBytes);
  // Before this: what is offered, and what was granted a moment ago and the borrower has not heard of. (What it does not
  // hold later it could not open, or has given up.)
  const bool is_news = now - borrower.granted_at < kHearing;
  served.on_their_way = std::max(seen.offered_bytes, is_news ? seen.bytes - request.held_bytes : 0);
  // What it holds under a name that it had before, its model's limit counts already.
  int64_t counted = 0;
  for (const PartyId party : parties_.OfInstance(borrower.engine.party.instance_id)) {
    const Holding& former = table_.BorrowedBy(party);
    if (party != borrower.id) counted += former.bytes - former.offered_bytes;
  }
  const int64_t uncounted = std::max<int64_t>(0, served.unseen - counted);
  const auto quota_left = [&] { return std::max<int64_t>(0, limits_.Left(borrower.engine.model_name) - uncounted); };
  served.quota = quota_left();
  if (const auto it = borrower.requests.find(request.key); it != borrower.requests.end()) {
    return Again(it->second, served);
  }
  const std::vector<LeaseId> ids = Serve(served, request.waiting_tokens);
  Remember(borrower, request.key, ids);
  return LeaseResponse{.leases = Alive(ids),
                       .shortage = ExplainShortage(served),
                       .lendable_bytes = std::min(served.sources.free_bytes(), quota_left()) + served.on_their_way,
                       .coming_bytes = served.coming,
                       .units = std::move(served.sources.units)};
}

LeaseResponse Allocation::Again(const std::vector<LeaseId>& ids, Case& request) {
  LeaseResponse again{.leases = Alive(ids), .shortage = "", .lendable_bytes = 0, .units = {}};
  int64_t told_bytes = 0;
  for (const Lease& lease : again.leases) told_bytes += lease.num_bytes;
  again.lendable_bytes =
      std::min(request.sources.free_bytes(), request.quota) + std::max<int64_t>(0, request.on_their_way - told_bytes);
  if (again.leases.size() < ids.size()) again.shortage = "leases of this request have ended since";
  return again;
}

// Offers the borrower what is free of its share, and takes back for it what others hold of its share.
std::vector<LeaseId> Allocation::Serve(Case& request, int64_t waiting_tokens) {
  Member& borrower = request.borrower;
  const int64_t leases = table_.BorrowedBy(borrower.id).leases;
  request.max_leases = std::min<int64_t>(kMaxLeasesPerResponse, std::max<int64_t>(0, kMaxLeasesPerSide - leases));
  const int64_t want = request.max_leases == 0 ? 0 : std::min(request.asked, request.quota);
  borrower.waiting_tokens = waiting_tokens;
  borrower.requested_at = request.now;
  Share(request, want);
  const int64_t due = std::min(want, std::max<int64_t>(0, request.share - request.held));
  const std::vector<LeaseId> ids = Offer(request, due);
  for (const LeaseId id : ids) request.got += table_.Find(id)->lease.num_bytes;
  request.full = !ids.empty() && ids.size() == request.max_leases;
  // No claim on what it could never have: its donors may be none of those that others ask.
  borrower.unmet_bytes =
      std::clamp<int64_t>(want - request.got, 0, std::max<int64_t>(0, request.pool - request.held - request.got));
  const int64_t lacking = due - request.got;
  if (!request.full && lacking > 0) request.coming = std::min(lacking, Rebalance(request, lacking));
  return ids;
}

// Weighted max-min over all members that hold or ask for memory of these sources: what each may hold in all.
void Allocation::Share(Case& request, int64_t want_bytes) const {
  const Member& borrower = request.borrower;
  int64_t& pool = request.pool = request.unseen;
  request.stakes[borrower.id].held = request.unseen;
  for (const Source& source : request.sources.list) {
    const int64_t own = source.free_bytes() + table_.LentBy(source.donor->id).bytes;
    pool += own;
    request.stakes[source.donor->id].own = own;
    for (const auto& [party, pair] : table_.PairsOf(source.donor->id)) {
      if (members_.Find(party) == nullptr) {
        pool -= pair.bytes_that_stay();
      } else {
        request.stakes[party].held += pair.bytes_that_stay();
      }
    }
  }
  std::vector<Stake*> stakes;
  std::vector<elastic::ShareClaim> claims;
  for (const PartyId id : members_.OfNode(borrower.engine.node_id)) {
    const Member* member = members_.Find(id);
    Stake& stake = request.stakes[id];
    const int64_t can_have = std::max<int64_t>(0, pool - stake.own);
    const int64_t open = members_.HasOpenRequest(*member, request.now) ? std::min(member->unmet_bytes, can_have) : 0;
    const int64_t unmet = member == &borrower ? want_bytes : open;
    const int64_t wanted = CheckedAdd(stake.held, unmet).value_or(INT64_MAX);
    if (wanted == 0) continue;
    stakes.push_back(&stake);
    // Weights of 2^40 tokens leave room for their sum.
    const int64_t weight = members_.WeightOf(*member, /*against_need=*/borrower.waiting_tokens > 0, request.now);
    claims.push_back({.weight = std::min(weight, int64_t{1} << 40), .wanted_bytes = wanted});
  }
  const std::vector<int64_t> parts = elastic::FairShares(pool, claims);
  for (size_t i = 0; i < stakes.size(); ++i) stakes[i]->share = parts[i];
  request.held = request.stakes[borrower.id].held;
  request.share = request.stakes[borrower.id].share;
}

std::vector<LeaseId> Allocation::Offer(Case& request, int64_t want_bytes) {
  std::vector<LeaseId> ids;
  int64_t got = 0;
  while (got < want_bytes && ids.size() < request.max_leases) {
    Source* source = request.sources.Best();
    if (source == nullptr) break;
    const int64_t unit_bytes = source->unit.bytes;
    const int64_t units = std::min({CeilDiv(want_bytes - got, unit_bytes), source->free_units,
                                    std::max<int64_t>(1, MaxLeaseBytes(options_, source->donor->engine) / unit_bytes),
                                    (request.quota - got) / unit_bytes});
    const std::optional<LeaseId> id = units < 1 ? std::nullopt : OfferFrom(*source, request, units);
    if (!id.has_value()) {
      source->free_units = 0;
      continue;
    }
    got += table_.Find(*id)->lease.num_bytes;
    ids.push_back(*id);
  }
  return ids;
}

std::optional<LeaseId> Allocation::OfferFrom(Source& source, const Case& request, int64_t max_units) {
  if (source.leases >= static_cast<int64_t>(kMaxLeasesPerSide)) return std::nullopt;
  const Engine &donor = source.donor->engine, &borrower = request.borrower.engine;
  const std::optional<Extent> extent =
      CarveFromTail(source.region, source.taken,
                    {.unit_blocks = source.unit.donor_blocks,
                     .step_blocks = elastic::PageStepBlocks(donor.block_bytes, donor.page_bytes),
                     .max_units = max_units});
  if (!extent.has_value()) return std::nullopt;
  const int64_t num_bytes = extent->num_blocks * donor.block_bytes;
  const Lease lease{.id = NewId(),
                    .donor = donor.party,
                    .borrower = borrower.party,
                    .borrower_model = borrower.model_name,
                    .extent = *extent,
                    .num_bytes = num_bytes,
                    .borrower_blocks = num_bytes / borrower.block_bytes,
                    .epoch = std::nullopt,
                    .state = LeaseState::kOffered,
                    .channel = donor.channel,
                    .capability = new_capability_()};
  table_.Insert({.lease = lease, .entered = request.now, .answer_by = request.now + options_.offer_timeout});
  source.taken.push_back(*extent);
  ++source.leases;
  source.free_units -= extent->num_blocks / source.unit.donor_blocks;
  return lease.id;
}

// The innermost leases that may be taken back for fairness, those that entered by `ripe_since`, until there is enough.
void Allocation::AddRipe(const Places& stay, int64_t lacking_bytes, absl::Time ripe_since, Places& ripe) const {
  for (auto it = stay.begin(); it != stay.end() && lacking_bytes > 0; ++it) {
    const Record& record = *it->second;
    if (!record.lease.epoch.has_value() || record.entered > ripe_since) continue;
    ripe.insert(*it);
    lacking_bytes -= record.lease.num_bytes;
  }
}

// Asks to revoke for the borrower what others hold above their shares; returns the bytes on their way back. So that
// leases do not move to and fro, a borrower that is not starved gets only memory of idle borrowers, and only if tokens
// wait. If nothing else is coming, an idle borrower that is above its share at all gives one whole lease, and may end
// below its share: it has nothing waiting that would take the lease back. Who has come back has as much time to say what
// it needs as a new lease has.
int64_t Allocation::Rebalance(Case& request, int64_t lacking_bytes) {
  const Member& borrower = request.borrower;
  const bool starved = request.held + request.got < request.share / 4 * 3;
  const absl::Time ripe_since = request.now - options_.min_hold;
  int64_t coming = 0;
  for (const Source& source : request.sources.list) {
    const PartyId donor = source.donor->id;
    coming += table_.LentBy(donor).revoking_bytes - table_.PairOf(donor, borrower.id).revoking_bytes;
  }
  std::deque<Places> ripe;  // by yielder
  std::vector<Yielder> above, idle;
  for (const auto& [party, stake] : request.stakes) {
    const Member& member = *members_.Find(party);
    const bool only_caches = borrower.waiting_tokens > 0 && members_.OnlyCaches(member, request.now);
    const bool yields = starved || only_caches;
    if (party == borrower.id || !yields || member.here_since > ripe_since) continue;
    Places& leases = ripe.emplace_back();
    for (const Source& source : request.sources.list) {
      AddRipe(table_.PairOf(source.donor->id, party).stay, lacking_bytes, ripe_since, leases);
    }
    above.emplace_back(stake.held - stake.share, /*weight=*/1, leases, /*offers=*/false);
    if (only_caches) idle.push_back(above.back());
  }
  const auto may = [](const Yielder& yielder) {  // and is not below its share afterwards
    return yielder.has_leases() && yielder.next().num_bytes <= yielder.bytes();
  };
  const auto may_in_part = [](const Yielder& yielder) { return yielder.has_leases() && yielder.bytes() > 0; };
  while (coming < lacking_bytes) {
    Yielder* most = MostAbove(above, may);
    if (most == nullptr && coming == 0) most = MostAbove(idle, may_in_part);
    if (most == nullptr) break;
    const Lease& victim = most->Pop();
    coming += victim.num_bytes;
    table_.AskToRevoke(victim.id, RevokeReason::kFairness);
  }
  return coming;
}

std::string Allocation::ExplainShortage(const Case& request) {
  if (request.got >= request.asked || request.full) return "";
  const Engine& borrower = request.borrower.engine;
  std::string why = "donors have no more to lend now";
  if (borrower.channel.empty()) {
    why = "this engine shares no memory: it has no lease channel";
  } else if (request.max_leases == 0) {
    why = absl::StrCat("this engine borrows on ", kMaxLeasesPerSide, " leases, the most; give --max_lease_bytes more");
  } else if (request.quota < request.asked && request.quota <= request.share - request.held) {
    why = absl::StrCat("the limit on model '", borrower.model_name, "' leaves ", request.quota,
                       " bytes (swiftcachectl lease limit changes it)");
  } else if (request.sources.list.empty()) {
    why = absl::StrCat("no other engine of node '", borrower.node_id, "' lends memory");
  } else if (request.share - request.held < request.asked) {
    why = absl::StrCat("donors have no more, or others lack memory too: the share of ", borrower.party.name, " is ",
                       request.share, " bytes, it held ", request.held, "; ", request.coming,
                       " are being taken back for it");
  }
  for (const PairUnit& pair : request.sources.units) {
    if (!pair.unit.ok()) absl::StrAppend(&why, "; ", pair.donor, ": ", pair.unit.status().message());
  }
  return why;
}

void Allocation::Remember(Member& member, const std::string& key, std::vector<LeaseId> ids) const {
  member.requests[key] = std::move(ids);
  member.request_order.push_back(key);
  while (member.request_order.size() > options_.max_remembered_requests) {
    member.requests.erase(member.request_order.front());
    member.request_order.pop_front();
  }
}

std::vector<Lease> Allocation::Alive(const std::vector<LeaseId>& ids) const {
  std::vector<Lease> leases;
  for (const LeaseId id : ids) {
    if (const Record* record = table_.Find(id)) leases.push_back(record->lease);
  }
  return leases;
}

LeaseId Allocation::NewId() {
  LeaseId id;
  do {
    id = LeaseId(int64_t{options_.id_prefix & 0x7fffffff} << 32 | ++last_id_);
  } while (table_.Find(id) != nullptr);
  return id;
}

}  // namespace swiftcache::broker::ledger
