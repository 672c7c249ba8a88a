// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/cluster.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"

namespace swiftcache::sim {

using engine::lease::Lease;
using engine::lease::State;

namespace {

constexpr Micros kMillisecond = 1'000;
constexpr Micros kTrouble = 1'500 * kMillisecond;  // faults until then
constexpr Micros kWishes = 1'800 * kMillisecond;   // new requests until then
constexpr Micros kPeace = 3'900 * kMillisecond;    // everybody agrees then,
constexpr Micros kOnTheWay = 200 * kMillisecond;   // or within this, less than the time-outs that end lost leases
constexpr Micros kReturn = 1'000 * kMillisecond;   // nothing is left after this

}  // namespace

Cluster::Cluster(const Options& options, Tally& tally)
    : options_(options), tally_(tally), sim_(options.seed), network_(sim_) {
  sim_.traced = options.traced;
  Random& random = sim_.random;
  const bool all = options.faults == Faults::kAll;
  network_.copies = !all || random.Chance(0.3) ? 0.0 : 0.05;
  network_.slow = !all || random.Chance(0.3) ? 0.0 : 0.05;
  StartBroker();
  const int num_engines = static_cast<int>(random.Between(2, 4));
  for (int i = 1; i <= num_engines; ++i) {
    const bool both = random.Chance(0.3);
    const int64_t cells_per_block = random.Between(1, 3);
    engines_.push_back(
        std::make_unique<SimEngine>(sim_, network_, directory_, address_, tally_,
                                    SimEngine::Options{.endpoint = i,
                                                       .name = absl::StrCat("e", i),
                                                       .num_blocks = random.Between(96, 144) / cells_per_block / 2,
                                                       .cells_per_block = cells_per_block,
                                                       .lends = both || i % 2 == 0,
                                                       .borrows = both || i % 2 == 1,
                                                       .calm = !all,
                                                       .bug = options.bug}));
    engines_.back()->Start();
  }
}

std::string Cluster::Run() {
  const int64_t lost_before = tally_.lost_in_use;
  const Micros later = options_.faults == Faults::kBrokerAway ? BrokerIsAway() : 0;
  if (later == 0) PlanFaults();
  RunUntil(later + kTrouble);
  Heal();
  RunUntil(later + kWishes);
  for (const auto& engine : engines_) engine->Quiesce();
  RunUntil(later + kPeace);
  if (!sim_.failed()) CheckAgreement();
  if (!sim_.failed() && limited_.has_value()) CheckLimit();
  if (options_.faults != Faults::kAll && tally_.lost_in_use > lost_before) {
    sim_.Fail("only brokers came and went, and that cost a borrower a lease that it used");
  }
  for (const auto& engine : engines_) engine->ReturnAll();
  RunUntil(sim_.now() + kReturn);
  if (!sim_.failed()) CheckNothingIsLeft();
  ++tally_.runs;
  tally_.events += sim_.num_events();
  return sim_.failure();
}

void Cluster::RunUntil(Micros when) {
  while (sim_.RunNext(when)) {
  }
}

SimEngine& Cluster::AnyEngine() { return *engines_[sim_.random.Below(static_cast<int64_t>(engines_.size()))]; }

void Cluster::PlanFaults() {
  if (options_.faults == Faults::kBrokerOnly) {
    for (Micros when = 400 * kMillisecond; when < kTrouble; when += sim_.random.Between(1'000, 1'500) * kMillisecond) {
      sim_.At(when, [this] { OneFault(); });
    }
    return;
  }
  for (int64_t i = sim_.random.Between(2, 16); i > 0; --i) {
    sim_.At(sim_.random.Between(300 * kMillisecond, kTrouble - kMillisecond), [this] { OneFault(); });
  }
}

void Cluster::OneFault() {
  SimEngine& engine = AnyEngine();
  if (sim_.failed() || !engine.process().alive()) return;
  const Micros length = sim_.random.Chance(0.5) ? sim_.random.Between(1, 60) * kMillisecond
                                                : sim_.random.Between(60, 1'200) * kMillisecond;
  if (options_.faults == Faults::kBrokerOnly) return sim_.random.Chance(0.5) ? CrashBroker() : ReplaceBroker();
  switch (sim_.random.Below(12)) {
    case 0:
      return CrashEngine(engine);
    case 1:
      return CrashBroker();
    case 2:
      return ReplaceBroker();
    case 3:
      ++tally_.stops;
      sim_.Trace([&] { return absl::StrCat(engine.instance(), " is stopped for ", length, " us"); });
      engine.StopProcess();
      return sim_.At(sim_.now() + length, [&engine] { engine.ContinueProcess(); });
    case 4:
      ++tally_.hangs;
      sim_.Trace([&] { return absl::StrCat(engine.instance(), "'s loop hangs for ", length, " us"); });
      return engine.HangLoop(length);
    case 5:
    case 6:
      return CutALink();
    case 8:
      return LeaveAndReturn(engine);
    case 9:
      return StopBroker(length);
    case 10:
      return LimitAModel(length);
    case 7:
      return engine.process().Run([this, &engine] { engine.Need(sim_.random.Between(1, 40)); });
    default:
      if (address_.broker == nullptr) return;
      return address_.broker->process().Run([broker = address_.broker] { broker->RevokeOne(); });
  }
}

// It is killed under load, with a limit in force. When it is back all engines but one find it at once; that one is cut
// off from it for four seconds more. Returns how long all that took.
Micros Cluster::BrokerIsAway() {
  RunUntil(kTrouble / 2);
  limited_ = absl::StrCat("model-", sim_.random.Below(3));
  address_.broker->process().Run([this, bytes = sim_.random.Below(60) * kCellBytes] {
    (void)address_.broker->tables().LimitLease(*limited_, bytes, address_.broker->Now());  // no limit is below 0
  });
  RunUntil(kTrouble);  // what was over the limit has ended
  std::vector<Lease> lent;
  for (const auto& engine : engines_) {
    for (const Lease& lease : engine->given()) {
      if (!address_.broker->WhyAskedFor(lease.id).has_value()) lent.push_back(lease);
    }
  }
  const int64_t reads = tally_.remote_reads;
  const Micros back = kTrouble + options_.broker_away, late = back + 4'000 * kMillisecond;
  ++tally_.broker_restarts;
  sim_.Trace([&] { return absl::StrCat(address_.broker->incarnation(), " dies, with ", lent.size(), " leases"); });
  std::exchange(address_.broker, nullptr)->Die();
  for (const auto& engine : engines_) engine->WatchBroke();
  const SimEngine& cut_off = AnyEngine();
  network_.Cut(SimBroker::kEndpoint, cut_off.endpoint(), late);
  RunUntil(back);
  StartBroker();
  RunUntil(late);
  tally_.kept_of_cut_off += CheckNothingEnded(lent, cut_off.instance());
  RunUntil(late + 500 * kMillisecond);
  tally_.kept_leases += CheckNothingEnded(lent, "");
  if (!sim_.failed()) CheckLimit();
  tally_.reads_meanwhile += tally_.remote_reads - reads;
  return late;
}

// Of those that the new broker did not ask for to divide memory anew. It may not ask for what an engine gives or takes
// that is cut off. Returns how many live; of that engine, if there is one.
int64_t Cluster::CheckNothingEnded(const std::vector<Lease>& before, const std::string& cut_off) {
  if (sim_.failed()) return 0;
  std::set<LeaseId> given;
  for (const auto& engine : engines_) {
    for (const Lease& lease : engine->given()) given.insert(lease.id);
  }
  int64_t kept = 0;
  for (const Lease& lease : before) {
    const bool of_cut_off = lease.donor_instance == cut_off || lease.borrower_instance == cut_off;
    const auto asked_for = address_.broker->WhyAskedFor(lease.id);
    if (!of_cut_off && asked_for == broker::ledger::RevokeReason::kFairness) continue;
    if (asked_for.has_value() || !given.contains(lease.id)) {
      sim_.Fail(absl::StrCat("only the broker was away, and that ended lease ", lease.id.value(), " of ",
                             lease.donor_instance, " to ", lease.borrower_instance, ": ",
                             asked_for.has_value() ? ReasonName(*asked_for) : "by itself"));
      return 0;
    }
    kept += of_cut_off || cut_off.empty() ? 1 : 0;
  }
  return kept;
}

void Cluster::CheckLimit() {
  for (const broker::ledger::LeaseLimit& limit : address_.broker->tables().leases().limits()) {
    if (limit.model_name != limited_) continue;
    int64_t bytes = 0;
    for (const auto& lease : address_.broker->tables().leases().Snapshot()) {
      const bool counts = lease.state != broker::ledger::LeaseState::kRevoking;
      if (counts && lease.borrower_model == limited_) bytes += lease.num_bytes;
    }
    if (bytes > limit.max_borrowed_bytes.value_or(0)) {
      sim_.Fail(absl::StrCat(limit.model_name, " borrows ", bytes, " of ", limit.max_borrowed_bytes.value_or(0)));
    }
    return;
  }
  sim_.Fail(absl::StrCat("the limit of ", *limited_, " did not survive its broker"));
}

void Cluster::CrashEngine(SimEngine& engine) {
  ++tally_.engine_crashes;
  engine.Die();
  for (const auto& broker : brokers_) broker->BreakStream(engine.endpoint());
  sim_.At(sim_.now() + sim_.random.Between(1, 900) * kMillisecond, [&engine] {
    if (!engine.process().alive()) engine.Start();
  });
}

void Cluster::LeaveAndReturn(SimEngine& engine) {
  ++tally_.departures;
  sim_.Trace([&] { return absl::StrCat(engine.instance(), " leaves"); });
  engine.Leave();
  const int64_t life = engine.process().life();
  sim_.At(sim_.now() + 150 * kMillisecond, [this, &engine, life] {
    if (engine.process().alive() && engine.process().life() == life) CrashEngine(engine);
  });
}

void Cluster::StopBroker(Micros length) {
  if (address_.broker == nullptr) return;
  ++tally_.broker_stops;
  SimBroker* const broker = address_.broker;
  sim_.Trace([&] { return absl::StrCat(broker->incarnation(), " is stopped for ", length, " us"); });
  broker->Stop();
  sim_.At(sim_.now() + length, [broker] { broker->Continue(); });
}

void Cluster::LimitAModel(Micros length) {
  const std::string model = absl::StrCat("model-", sim_.random.Below(3));
  const int64_t bytes = sim_.random.Below(20) * kCellBytes;
  const auto limit = [this, model](std::optional<int64_t> most) {
    if (address_.broker == nullptr) return;
    address_.broker->process().Run([broker = address_.broker, model, most] {
      (void)broker->tables().LimitLease(model, most, broker->Now());  // no limit is below 0
    });
  };
  limit(bytes);
  sim_.At(sim_.now() + length, [limit] { limit(std::nullopt); });
}

void Cluster::StartBroker() {
  brokers_.push_back(std::make_unique<SimBroker>(sim_, network_, options_.bug));
  brokers_.back()->Start();
  address_.broker = brokers_.back().get();
  sim_.Trace([&] { return absl::StrCat(address_.broker->incarnation(), " starts"); });
}

void Cluster::CrashBroker() {
  if (address_.broker == nullptr) return;
  ++tally_.broker_restarts;
  sim_.Trace([&] { return absl::StrCat(address_.broker->incarnation(), " dies"); });
  std::exchange(address_.broker, nullptr)->Die();
  for (const auto& engine : engines_) {
    if (engine->process().alive()) engine->WatchBroke();
  }
  sim_.At(sim_.now() + sim_.random.Below(700 * kMillisecond), [this] {
    if (address_.broker == nullptr) StartBroker();
  });
}

// The old one is not dead yet: whoever watches it hears it until it is.
void Cluster::ReplaceBroker() {
  if (address_.broker == nullptr) return;
  ++tally_.broker_replacements;
  SimBroker* const old = address_.broker;
  sim_.Trace([&] { return absl::StrCat(old->incarnation(), " is replaced"); });
  StartBroker();
  sim_.At(sim_.now() + sim_.random.Between(100, 900) * kMillisecond, [old] { old->Die(); });
}

void Cluster::CutALink() {
  ++tally_.cuts;
  const int a = static_cast<int>(sim_.random.Below(static_cast<int64_t>(engines_.size()) + 1));
  const int b = static_cast<int>(sim_.random.Between(1, static_cast<int64_t>(engines_.size())));
  if (a == b) return;
  const Micros length = sim_.random.Between(5, 1'000) * kMillisecond;
  sim_.Trace([&] { return absl::StrCat("the link of ", a, " and ", b, " is cut for ", length, " us"); });
  network_.Cut(a, b, sim_.now() + length);
  if (a != SimBroker::kEndpoint || !sim_.random.Chance(0.5)) return;
  for (const auto& broker : brokers_) broker->BreakStream(b);  // else it only stalls
  if (engines_[b - 1]->process().alive()) engines_[b - 1]->WatchBroke();
}

void Cluster::Heal() {
  if (sim_.failed()) return;
  sim_.Trace([] { return "peace"; });
  network_.HealAll();
  network_.copies = 0;
  if (address_.broker == nullptr) StartBroker();
  address_.broker->Continue();
  for (const auto& engine : engines_) {
    if (engine->leaving()) CrashEngine(*engine);
    if (!engine->process().alive()) engine->Start();
    if (engine->process().stopped()) engine->ContinueProcess();
  }
}

// An idle cache, too, has a use for more, so a lease may have come about a moment ago: the donor's report or the broker's
// word to the borrower is still on its way. A lease that one of them has lost is still lost when all of that has arrived.
void Cluster::CheckAgreement() {
  const Micros arrived = sim_.now() + kOnTheWay;
  std::string found = Disagreement();
  while (!found.empty() && sim_.now() < arrived && !sim_.failed()) {
    RunUntil(sim_.now() + kMillisecond);
    found = Disagreement();
  }
  if (!found.empty()) return sim_.Fail("in peace " + found);
  for (const auto& engine : engines_) tally_.agreed_leases += static_cast<int64_t>(engine->given().size());
}

// Between the broker's table, but for its offers, and what the engines hold, lease by lease; empty: none.
std::string Cluster::Disagreement() const {
  std::map<LeaseId, Lease> table;
  for (const auto& lease : address_.broker->tables().leases().Snapshot()) {
    if (lease.state != broker::ledger::LeaseState::kOffered) table[LeaseId(lease.id.value())] = ToEngineLease(lease);
  }
  const auto disagree = [](const SimEngine& engine, LeaseId id, const char* what) {
    return absl::StrCat(engine.instance(), " and the broker disagree about lease ", id.value(), ": ", what);
  };
  size_t lent = 0, borrowed = 0;
  for (const auto& engine : engines_) {
    for (const Lease& lease : engine->given()) {
      const auto it = table.find(lease.id);
      if (it == table.end()) return disagree(*engine, lease.id, "the broker does not know it");
      if (!(it->second == lease)) return disagree(*engine, lease.id, "not as the donor knows it");
      ++lent;
    }
    for (const Lease& lease : engine->borrowed()) {
      if (!table.contains(lease.id)) return disagree(*engine, lease.id, "only its borrower knows it");
      ++borrowed;
    }
  }
  if (table.size() == lent && lent == borrowed) return "";
  std::string found =
      absl::StrCat("the broker knows ", table.size(), " leases, donors ", lent, ", borrowers ", borrowed);
  for (const auto& [id, lease] : table) absl::StrAppend(&found, "; ", id.value(), " ", StateName(lease.state));
  return found;
}

void Cluster::CheckNothingIsLeft() {
  for (const auto& engine : engines_) {
    if (const std::string found = engine->Leftovers(); !found.empty()) {
      return sim_.Fail(absl::StrCat("after all was returned ", engine->instance(), " has left: ", found));
    }
    tally_.stray_messages += engine->ignored();
  }
  if (const size_t leases = address_.broker->tables().leases().Snapshot().size(); leases > 0) {
    sim_.Fail(absl::StrCat("after all was returned the broker still has ", leases, " leases"));
  }
}

}  // namespace swiftcache::sim
