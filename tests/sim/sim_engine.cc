// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/sim_engine.h"

#include <algorithm>
#include <limits>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"

namespace swiftcache::sim {

namespace ledger = broker::ledger;
using engine::kv::Epoch;
using engine::lease::Borrower;
using engine::lease::Donor;
using engine::lease::Lease;
using engine::lease::State;

namespace {

// What the blinded donor sees instead of an extent: one that overlaps no other.
int64_t BlindOffset(LeaseId id) { return (id.value() & 0xffff) * 1'000'000; }

}  // namespace

SimEngine::SimEngine(Simulator& sim, Network& network, LeaseChannels::Directory& directory, BrokerAddress& broker,
                     Tally& tally, const Options& options)
    : sim_(sim),
      network_(network),
      broker_(broker),
      tally_(tally),
      options_(options),
      process_(sim),
      channels_(sim, network, directory, tally, process_, options.endpoint, *this) {
  process_.after_each = [this] { AfterEach(); };
}

void SimEngine::Start() {
  process_.Start();
  instance_ = absl::StrCat(options_.name, "-", process_.life());
  incarnation_.clear();
  const int64_t block_bytes = options_.cells_per_block * kCellBytes;
  const bool blind = options_.bug == PlantedBug::kLeaseTwice;  // its extents are moved out of the arena
  donor_.emplace(Donor::Options{.instance_id = instance_,
                                .num_blocks = blind ? std::numeric_limits<int64_t>::max() : options_.num_blocks,
                                .block_bytes = block_bytes,
                                .revoke_deadline = kRevokeDeadline,
                                .ttl = kTtl});
  borrower_.emplace(
      Borrower::Options{.instance_id = instance_, .block_bytes = block_bytes, .ttl = kTtl, .drain = kRevokeDeadline});
  channels_.Start(instance_, options_.num_blocks * options_.cells_per_block);
  const uint64_t life = static_cast<uint64_t>(options_.endpoint) * 1000 + static_cast<uint64_t>(process_.life());
  loop_.emplace(sim_, process_, channels_, tally_, *this,
                StepLoop::Options{.engine_life = life,
                                  .num_blocks = options_.num_blocks,
                                  .cells_per_block = options_.cells_per_block,
                                  .least_wanted = options_.borrows ? options_.num_blocks : options_.num_blocks / 8,
                                  .most_wanted = options_.num_blocks * (options_.borrows ? 16 : 7) / 8,
                                  .long_steps = !options_.calm,
                                  .bug = options_.bug});
  reports_.clear();
  limits_.clear();
  registrations_ = 0;
  reporting_ = registering_ = quiet_ = leaving_ = false;
  last_fenced_.reset();
  planned_tick_ = next_request_ = next_need_ = 0;
  sim_.Trace([&] { return absl::StrCat(instance_, " starts"); });
  loop_->Start();
  Register();
  KeepBeating();
  KeepReporting();
}

void SimEngine::Die() {
  sim_.Trace([&] { return absl::StrCat(instance_, " dies"); });
  tally_.stray_messages += ignored();
  process_.Kill();
  channels_.Die();
}

void SimEngine::ContinueProcess() {
  continued_at_ = process_.LocalNow();
  process_.Continue();
}

void SimEngine::Quiesce() {
  quiet_ = true;
  loop_->Quiesce();
}

void SimEngine::ReturnAll() {
  process_.Run([this] {
    donor_->RevokeAll("drain", process_.LocalNow());
    for (const Lease& lease : borrower_->Held()) borrower_->GiveBack(lease.id, kRevokeDeadline, process_.LocalNow());
  });
}

// As on SIGTERM: gives and takes everything back, signs off, and is gone.
void SimEngine::Leave() {
  leaving_ = true;
  ReturnAll();
  process_.After(100'000, [this] {
    Call(
        [name = options_.name, instance = instance_](SimBroker& broker) {
          broker.tables().Deregister(name, instance, broker.Now());
          return std::function<void()>([] {});
        },
        [] {});
  });
}

std::vector<Lease> SimEngine::given() const {
  std::vector<Lease> leases = donor_->Given();
  for (Lease& lease : leases) lease = Seen(lease);
  return leases;
}

std::string SimEngine::Leftovers() const {
  std::string found;
  const auto count = [&](const char* what, int64_t number) {
    if (number > 0) absl::StrAppend(&found, found.empty() ? "" : ", ", number, " ", what);
  };
  count("leases given", static_cast<int64_t>(donor_->Held().size()));
  count("leases taken", borrower_->num_leases());
  count("grants", channels_.num_grants());
  count("channels", channels_.num_open());
  count("regions", loop_->num_regions());
  count("reports", static_cast<int64_t>(reports_.size()));
  count("blocks away", std::count_if(loop_->away().begin(), loop_->away().end(), [](int64_t id) { return id != 0; }));
  return found;
}

// ---- The coordinator's ears.

void SimEngine::OnBorrowerOpened(LeaseId id) { donor_->BorrowerOpened(id, process_.LocalNow()); }
void SimEngine::OnRenewal(LeaseId id) { donor_->Renewal(id, process_.LocalNow()); }
void SimEngine::OnReleased(LeaseId id) { donor_->BorrowerReleased(id, process_.LocalNow()); }
void SimEngine::OnBorrowerGone(LeaseId id) { donor_->BorrowerGone(id, process_.LocalNow()); }
void SimEngine::OnOpened(LeaseId id, bool ok) { borrower_->Opened(id, ok, process_.LocalNow()); }
void SimEngine::OnRenewed(LeaseId id) { borrower_->Renewed(id, process_.LocalNow()); }
void SimEngine::OnRevoked(LeaseId id, absl::Duration left) { borrower_->Revoked(id, left, process_.LocalNow()); }
void SimEngine::OnDonorGone(LeaseId id) { borrower_->DonorGone(id, process_.LocalNow()); }
void SimEngine::OnStored(int64_t ticket, bool ok) { loop_->Stored(ticket, ok); }

void SimEngine::OnCleared(LeaseId id, bool ok) {
  process_.After(50, [this, id, ok] { donor_->Cleared(id, ok, process_.LocalNow()); });
}
void SimEngine::OnDrained(LeaseId id) {
  process_.After(50, [this, id] { borrower_->Drained(id, process_.LocalNow()); });
}
void SimEngine::OnDropped(LeaseId id) {
  process_.After(50, [this, id] { borrower_->Dropped(id, process_.LocalNow()); });
}
void SimEngine::OnGenerationChanged(LeaseId id) {
  process_.After(50, [this, id] { borrower_->GenerationChanged(id, process_.LocalNow()); });
}
void SimEngine::OnWantsMemory(int64_t blocks) {
  if (options_.borrows) process_.After(50, [this, blocks] { RequestMemory(blocks); });
}
void SimEngine::OnNeedsOwn(int64_t blocks) {
  process_.After(50, [this, blocks] { Need(blocks); });
}

// ---- The coordinator's hands.

struct SimEngine::Doer {
  SimEngine& e;
  absl::Time now() const { return e.process_.LocalNow(); }

  void operator()(const Donor::ClearExtent& a) { e.loop_->Clear(e.Seen(a.lease)); }
  void operator()(const Donor::StopClearing& a) { e.loop_->StopClearing(a.id); }
  void operator()(const Donor::Grant& a) {
    const Lease lease = e.Seen(a.lease);
    const int64_t per_block = e.options_.cells_per_block;
    for (int64_t i = 0; i < lease.extent.num_blocks; ++i) {
      if (e.loop_->away()[lease.extent.first_block + i] != lease.id.value()) {
        e.sim_.Fail(absl::StrCat(e.instance_, " grants lease ", lease.id.value(), " memory that kv has not given up"));
      }
    }
    const uint64_t epoch =
        e.channels_.Grant(lease, lease.extent.first_block * per_block, lease.extent.num_blocks * per_block);
    e.donor_->Granted(lease.id, Epoch(epoch), now());
  }
  void operator()(const Donor::SendRenewed& a) { e.channels_.SendRenewed(a.id); }
  void operator()(const Donor::SendRevoke& a) { e.channels_.SendRevoke(a.id, a.time_left); }
  void operator()(const Donor::Fence& a) {
    e.channels_.Fence(a.id);
    e.last_fenced_ = a.id;
  }
  void operator()(const Donor::TakeBack& a) { e.TookBack(a); }
  void operator()(const Donor::Say& a) {
    const Lease lease = e.Seen(a.lease);
    if (lease.state == State::kFenced) ++e.tally_.fenced;
    if (lease.state == State::kReleased) ++(lease.epoch == Epoch() ? e.tally_.declined : e.tally_.released);
    e.sim_.Trace([&] {
      return absl::StrCat(e.instance_, ": lease ", lease.id.value(), " is ", StateName(lease.state), " ", a.why);
    });
    e.Tell(lease);
  }

  void operator()(const Borrower::Open& a) { e.channels_.Open(a.lease); }
  void operator()(const Borrower::Use& a) { e.loop_->Use(a.lease); }
  void operator()(const Borrower::SendRenewal& a) {
    ++e.tally_.renewals;
    e.channels_.SendRenewal(a.id);
  }
  void operator()(const Borrower::Drain& a) {
    e.loop_->Drain(a.id);
    if (e.options_.bug == PlantedBug::kReleaseBeforeDrain) e.borrower_->Drained(a.id, now());
  }
  void operator()(const Borrower::SendRelease& a) { e.channels_.SendRelease(a.id); }
  void operator()(const Borrower::Lose& a) {
    ++e.tally_.lost_in_use;
    e.sim_.Trace([&] { return absl::StrCat(e.instance_, ": loses lease ", a.id.value(), ": ", a.why); });
    e.loop_->Lose(a.id);
  }
  void operator()(const Borrower::Close& a) { e.channels_.Close(a.id); }
};

void SimEngine::TookBack(const Donor::TakeBack& action) {
  const int64_t id = action.id.value();
  if (channels_.granted(action.id)) {
    sim_.Fail(absl::StrCat(instance_, " takes lease ", id, " back before it is fenced"));
  }
  const bool was_granted = last_fenced_ == action.id;
  const bool was_stopped = continued_at_ == process_.LocalNow();
  if (was_granted && !was_stopped && action.after_revoke > kRevokeDeadline + kTimerSlack) {
    sim_.Fail(absl::StrCat(instance_, " has lease ", id, " back ", absl::FormatDuration(action.after_revoke),
                           " after it wanted it; the deadline is ", absl::FormatDuration(kRevokeDeadline)));
  }
  sim_.Trace([&] {
    return absl::StrCat(instance_, ": takes back lease ", id, action.fenced ? " (fenced)" : "", " after ",
                        absl::FormatDuration(action.after_revoke));
  });
  engine::lease::Extent extent = action.extent;
  if (options_.bug == PlantedBug::kLeaseTwice) extent.first_block -= BlindOffset(action.id);
  loop_->TakeBack(action.id, extent);
}

// A donor that must not notice that an extent is offered twice sees other extents.
Lease SimEngine::Blinded(Lease lease) const {
  if (options_.bug == PlantedBug::kLeaseTwice) lease.extent.first_block += BlindOffset(lease.id);
  return lease;
}
Lease SimEngine::Seen(Lease lease) const {
  if (options_.bug == PlantedBug::kLeaseTwice) lease.extent.first_block -= BlindOffset(lease.id);
  return lease;
}

void SimEngine::AfterEach() {
  DoAll();
  if (const absl::Status status = donor_->CheckInvariants(); !status.ok()) sim_.Fail(status.ToString());
  if (const absl::Status status = borrower_->CheckInvariants(); !status.ok()) sim_.Fail(status.ToString());
  PlanTick();
}

void SimEngine::DoAll() {
  for (;;) {
    const std::vector<Donor::Action> donors = donor_->TakeActions();
    const std::vector<Borrower::Action> borrowers = borrower_->TakeActions();
    if (donors.empty() && borrowers.empty()) return;
    for (const Donor::Action& action : donors) std::visit(Doer{*this}, action);
    for (const Borrower::Action& action : borrowers) std::visit(Doer{*this}, action);
  }
}

void SimEngine::PlanTick() {
  const absl::Time next = std::min(donor_->NextDeadline(), borrower_->NextDeadline());
  if (next == absl::InfiniteFuture()) return;
  const Micros when = process_.WhenLocal(next);
  if (planned_tick_ > sim_.now() && planned_tick_ <= when) return;
  planned_tick_ = when;
  process_.At(when, [this] {
    donor_->Tick(process_.LocalNow());
    borrower_->Tick(process_.LocalNow());
  });
}

void SimEngine::Need(int64_t blocks) {
  if (quiet_ || options_.calm || sim_.now() < next_need_ || donor_->blocks_on_loan() == 0) return;
  next_need_ = sim_.now() + 30'000;
  ++tally_.own_needs;
  const auto take_innermost = [this, blocks] { donor_->NeedBack(blocks, process_.LocalNow()); };
  if (!donor_->HasChoice(blocks)) take_innermost();
  Call(
      [this, who = caller(), blocks, take_innermost](SimBroker& broker) {
        const auto advice = broker.tables().ScaleUp(who, blocks, broker.Now());
        return std::function<void()>([this, advice, take_innermost] {
          if (!advice.ok() || advice->empty()) return take_innermost();
          for (const ledger::LeaseId id : *advice) {
            donor_->Revoke(LeaseId(id.value()), "the donor needs its memory", process_.LocalNow());
          }
        });
      },
      take_innermost, /*timeout=*/3'000);
}

}  // namespace swiftcache::sim
