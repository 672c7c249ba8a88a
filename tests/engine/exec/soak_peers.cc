// SPDX-License-Identifier: Apache-2.0
#include "tests/engine/exec/soak_peers.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/log/log.h"

namespace swiftcache::engine::exec {

using kv::LeaseId;
using lease::Extent;

namespace {

constexpr std::byte kBorrowersByte{0xB0};
constexpr size_t kMaxTaken = 4, kMaxGiven = 2;
const char kMe[] = "me", kOther[] = "other";

}  // namespace

SoakPeers::SoakPeers(const Options& options, Chance& chance, SoakTally& tally)
    : options_(options),
      chance_(chance),
      tally_(tally),
      calm_(chance.Between(1, 4)),
      borrow_(chance.OneIn(3)),
      coordinator_({.instance_id = kMe, .num_blocks = options.num_blocks, .block_bytes = options.block_bytes}, clock_,
                   registry_) {}

void SoakPeers::Start(std::byte* own_memory) {
  own_memory_ = own_memory;
  coordinator_.Start(&transport_, this, [this](LoopMessage message) { Push(std::move(message)); });
}

void SoakPeers::Happen(bool in_step) {
  Settle();
  TakeStores();
  if (in_step && !taken_.empty() && chance_.OneIn(4 * calm_)) return Fence(Some(taken_), in_step);
  if (in_step && !taken_.empty() && chance_.OneIn(4 * calm_)) return RevokeAndWait(Some(taken_));
  switch (chance_.Between(0, 15)) {
    case 0:
      if (taken_.size() < kMaxTaken) Grant();
      break;
    case 1:
    case 2:
      if (!taken_.empty()) AnswerOpen(Some(taken_));
      break;
    case 3:
    case 4:
    case 5:
    case 6:
      if (!taken_.empty()) AnswerStores(Some(taken_), chance_.Between(1, 24));
      break;
    case 7:
      if (!taken_.empty() && chance_.OneIn(calm_)) Fence(Some(taken_), in_step);
      break;
    case 8:
      if (!taken_.empty() && chance_.OneIn(calm_)) Revoke(Some(taken_));
      break;
    case 9:
      if (!taken_.empty() && chance_.OneIn(4 * calm_)) LeaveDonor(Some(taken_), in_step);
      break;
    case 10:
      if (borrow_ && given_.size() < kMaxGiven) Borrow();
      break;
    case 11:
      if (!given_.empty()) GoOnBorrowing(Some(given_));
      break;
    case 12:
      if (!given_.empty() && chance_.OneIn(2)) GiveBack(Some(given_));
      break;
    case 13:
      AnswerWish();
      break;
    case 14:
      AdviseScaleUp();
      break;
    case 15:
      Advance(chance_.OneIn(8) ? absl::Seconds(chance_.Between(1, 4)) : absl::Milliseconds(chance_.Between(1, 20)));
      break;
  }
  Settle();
}

// --- donors

void SoakPeers::Grant() {
  const LeaseId id(++last_lease_);
  const int64_t blocks = chance_.Between(1, 2 * options_.num_blocks);
  taken_[id].blocks = blocks;
  dealings_.borrowed = true;
  ++tally_.granted;
  Tell().OnLease({.id = id,
                  .donor = absl::StrCat("donor", id.value() % 3),
                  .donor_instance = kOther,
                  .borrower_instance = kMe,
                  .extent = {0, blocks},
                  .num_bytes = blocks * options_.block_bytes,
                  .borrower_blocks = blocks,
                  .epoch = kv::Epoch(id.value()),
                  .state = lease::State::kGranted});
  Settle();
  if (!chance_.OneIn(4)) AnswerOpen(taken_.find(id));
}

void SoakPeers::AnswerOpen(TakenIt taken) {
  auto& [id, lease] = *taken;
  if (!lease.asked || lease.open) return;
  if (chance_.OneIn(16)) return Tell().OnOpened(id, absl::UnavailableError("the donor is away"));
  lease.open = true;
  const bool slow_link = transport_.measures && chance_.OneIn(2);
  Tell().OnOpened(id, transport_.AddLease(id, lease.blocks * options_.block_bytes, kv::Epoch(id.value()), slow_link));
}

void SoakPeers::Revoke(TakenIt taken) {
  auto& [id, lease] = *taken;
  if (lease.revoked) return;
  lease.revoked = true;
  const absl::Duration left = absl::Milliseconds(chance_.Between(1, chance_.OneIn(8)   ? 9000
                                                                    : chance_.OneIn(4) ? 400
                                                                                       : 50));
  lease.fence_at = clock_.Now() + left;
  ++tally_.revoked;
  Tell().OnRevoked(id, left);
}

// Until most of its time has passed, whatever the engine does meanwhile.
void SoakPeers::RevokeAndWait(TakenIt taken) {
  Revoke(taken);
  Advance(std::max(absl::ZeroDuration(), (taken->second.fence_at - clock_.Now()) * 3 / 4));
}

// The donor has the memory, and the borrower has yet to hear of it.
void SoakPeers::Fence(TakenIt taken, bool in_step) {
  auto& [id, lease] = *taken;
  if (!lease.open || lease.fenced) return;
  lease.fenced = true;
  ++tally_.fenced;
  tally_.fenced_in_steps += in_step;
  transport_.Fence(id);
}

void SoakPeers::LeaveDonor(TakenIt taken, bool in_step) {
  if (chance_.OneIn(2)) Fence(taken, in_step);
  ++tally_.donors_gone;
  if (chance_.OneIn(4)) {
    Tell().OnLease({.id = taken->first, .borrower_instance = kMe, .state = lease::State::kFenced});
  } else {
    Tell().OnDonorGone(taken->first);
  }
}

// A store may be in place long before its answer comes.
void SoakPeers::AnswerStores(TakenIt taken, int64_t count) {
  auto& [id, lease] = *taken;
  if (lease.abandoned || chance_.OneIn(20 * calm_)) return Refuse(taken);
  const bool answers = !chance_.OneIn(6);
  for (; count > 0 && !lease.stores.empty(); --count) {
    if (lease.landed == 0 && lease.fenced) return Refuse(taken);
    if (lease.landed == 0) {
      transport_.Land(lease.stores[lease.landed++]);
      ++tally_.stored;
    }
    if (!answers) return;
    --lease.landed;
    const transport::Ticket ticket = lease.stores.front().ticket;
    lease.stores.erase(lease.stores.begin());
    coordinator_.OnStored(ticket, absl::OkStatus());
  }
}

// All that is not in place, as a donor does that has fenced the lease or an end of the channel that closed.
void SoakPeers::Refuse(TakenIt taken) {
  Taken& lease = taken->second;
  const absl::Status why = chance_.OneIn(2) ? absl::FailedPreconditionError("fenced") : absl::UnavailableError("gone");
  for (const auto& store : std::exchange(lease.stores, {})) {
    const bool landed = std::exchange(lease.landed, 0) > 0;
    tally_.refused_stores += !landed;
    coordinator_.OnStored(store.ticket, landed ? absl::OkStatus() : why);
  }
}

void SoakPeers::FenceOverdue() {
  for (auto it = taken_.begin(); it != taken_.end(); ++it) {
    if (it->second.fence_at <= clock_.Now()) Fence(it, false);
  }
}

// --- borrowers

void SoakPeers::Borrow() {
  const int64_t blocks = chance_.Between(1, options_.num_blocks / 3);
  const Extent extent{chance_.Between(0, options_.num_blocks - blocks), blocks};
  for (const auto& [id, given] : given_) {
    if (lease::Overlap(given.extent, extent)) return;
  }
  const LeaseId id(++last_lease_);
  given_[id].extent = extent;
  dealings_.offered = true;
  const char* borrower = chance_.OneIn(2) ? kOther : "third";
  Tell().OnLease({.id = id,
                  .donor_instance = kMe,
                  .borrower_instance = borrower,
                  .borrower_model = LoanAuditor::ModelOf(borrower),
                  .extent = extent,
                  .num_bytes = blocks * options_.block_bytes});
}

void SoakPeers::GoOnBorrowing(GivenIt given) {
  auto& [id, lease] = *given;
  if (!lease.granted) return;
  if (std::exchange(lease.open, true)) {
    Tell().OnRenewal(id, /*heat=*/id.value() % 7);
  } else {
    Tell().OnBorrowerOpened(id);
  }
}

void SoakPeers::GiveBack(GivenIt given) {
  auto& [id, lease] = *given;
  if (!lease.granted) return;
  if (chance_.OneIn(4)) {
    Tell().OnBorrowerGone(id);
  } else {
    Tell().OnReleased(id);
  }
}

// --- the broker

void SoakPeers::AnswerWish() {
  int64_t wanted = 0;
  {
    absl::MutexLock lock(&mutex_);
    wanted = std::exchange(wanted_bytes_, 0);
  }
  if (wanted == 0) return;
  if (chance_.OneIn(6)) return Tell().OnLeaseResponse(absl::UnavailableError("no broker"));
  const bool offers = !winding_down_ && chance_.OneIn(2);
  Tell().OnLeaseResponse(coordinator::LeaseResponse{.offered_bytes = offers ? wanted : 0,
                                                    .lendable_bytes = chance_.OneIn(2) ? wanted : 0,
                                                    .shortage = offers ? "" : "nobody lends"});
  if (offers && taken_.size() < kMaxTaken) Grant();
}

void SoakPeers::AdviseScaleUp() {
  int64_t question = 0;
  {
    absl::MutexLock lock(&mutex_);
    question = std::exchange(scale_up_asked_, 0);
  }
  if (question == 0) return;
  if (chance_.OneIn(4)) return Tell().OnScaleUp(question, absl::UnavailableError("no broker"));
  std::vector<LeaseId> advice;
  if (!given_.empty() && !chance_.OneIn(3)) advice.push_back(Some(given_)->first);
  Tell().OnScaleUp(question, advice);
}

// --- what is heard

void SoakPeers::Advance(absl::Duration by) {
  Settle();
  clock_.Advance(by);
  Wait();  // a message is handled before the deadlines of its time
  unsettled_ = true;
  Settle();
  FenceOverdue();
  if (failure_.empty()) failure_ = CheckAccounts();
}

std::string SoakPeers::CheckAccounts() {
  Wait();
  const std::map<std::string, lease::Account> accounts = coordinator_.Accounts();
  const std::string wrong = auditor_.Compare(accounts);
  return wrong.empty() ? "" : absl::StrCat("accounts: ", wrong);
}

void SoakPeers::TallyAccounts() {
  for (const auto& [model, account] : coordinator_.Accounts()) {
    tally_.lent_byte_seconds += account.byte_seconds();
    tally_.ended_for_need += account.of(lease::Ending::kNeed).all();
    tally_.given_back += account.of(lease::Ending::kGivenBack).all();
    tally_.borrowers_gone += account.of(lease::Ending::kBorrowerGone).all();
  }
}

void SoakPeers::Settle() {
  while (std::exchange(unsettled_, false)) {
    Wait();
    Notice();
  }
}

// Until the coordinator has done all that was asked of it before, and all that comes of it. It asks to lease, publishes
// accounts and reports after all messages that lay there at one time, which the second mark is not one of.
void SoakPeers::Wait() {
  for (int i = 0; i < 2; ++i) {
    int64_t mark = 0;
    {
      absl::MutexLock lock(&mutex_);
      mark = ++marks_;
    }
    coordinator_.ReportWindow({.used_blocks = -mark});
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(this, &SoakPeers::Waited));
  }
}

void SoakPeers::Notice() {
  const std::vector<std::string> calls = transport_.log().calls(noticed_);
  noticed_ += calls.size();
  for (const std::string& call : calls) {
    const std::vector<std::string> words = absl::StrSplit(call, ' ');
    int64_t id = 0;
    CHECK(absl::SimpleAtoi(words.at(1), &id));
    Notice(words[0], LeaseId(id));
  }
}

void SoakPeers::Notice(const std::string& what, LeaseId id) {
  TakeStores();
  if (const TakenIt taken = taken_.find(id); taken != taken_.end()) NoticeOf(taken, what);
  if (const GivenIt given = given_.find(id); given != given_.end()) NoticeOf(given, what);
}

void SoakPeers::NoticeOf(TakenIt taken, const std::string& what) {
  auto& [id, lease] = *taken;
  if (what == "Open") {
    lease.asked = true;
  } else if (what == "SendRenewal") {
    if (!lease.fenced && !chance_.OneIn(10)) Tell().OnRenewed(id);
  } else if (what == "SendRelease") {
    ++tally_.released;
    lease.released = true;
    transport_.Scribble(id);  // and its word stays: who read it now would not notice
  } else if (what == "Abandon") {
    ++(lease.released ? tally_.unread : tally_.lost);
    lease.abandoned = true;
  } else if (what == "Close") {
    if (!lease.stores.empty()) failure_ = absl::StrCat("lease ", id.value(), " was closed with a store under way");
    taken_.erase(taken);
  }
}

void SoakPeers::NoticeOf(GivenIt given, const std::string& what) {
  auto& [id, lease] = *given;
  if (what == "Grant") {
    ++tally_.lent;
    lease.granted = true;
    if (options_.scrubbed) ExpectFilled(lease.extent, std::byte{0}, "another tenant's byte was lent");
    std::fill_n(Begin(lease.extent), lease.extent.num_blocks * options_.block_bytes, kBorrowersByte);
  } else if (what == "SendRevoke") {
    ++tally_.asked_back;
    if (chance_.OneIn(2)) Tell().OnReleased(id);  // else later, or never: the deadline passes
  } else if (what == "Fence") {
    ++tally_.taken_back;
    ExpectFilled(lease.extent, kBorrowersByte, "the owner wrote to memory that it had lent");
    given_.erase(given);
  }
}

void SoakPeers::ExpectFilled(const Extent& extent, std::byte with, const std::string& otherwise) {
  const std::byte* begin = Begin(extent);
  const bool filled =
      std::all_of(begin, begin + extent.num_blocks * options_.block_bytes, [with](std::byte b) { return b == with; });
  if (!filled && failure_.empty()) failure_ = otherwise;
}

void SoakPeers::TakeStores() {
  for (const auto& store : transport_.TakeStores()) {
    const TakenIt taken = taken_.find(store.lease);
    if (taken == taken_.end()) {
      failure_ = absl::StrCat("a store to lease ", store.lease.value(), ", which is closed");
    } else {
      taken->second.stores.push_back(store);
    }
  }
}

std::vector<LoopMessage> SoakPeers::TakeMessages(int64_t max) {
  Settle();
  ForgetDeclined();
  absl::MutexLock lock(&mutex_);
  const auto end = messages_.begin() + std::min<int64_t>(max, static_cast<int64_t>(messages_.size()));
  std::vector<LoopMessage> taken(std::make_move_iterator(messages_.begin()), std::make_move_iterator(end));
  messages_.erase(messages_.begin(), end);
  return taken;
}

// Of that a donor tells the broker alone.
void SoakPeers::ForgetDeclined() {
  if (std::all_of(given_.begin(), given_.end(), [](const auto& given) { return given.second.granted; })) return;
  absl::MutexLock lock(&mutex_);
  for (const LeaseId id : std::exchange(declined_, {})) tally_.declined += static_cast<int64_t>(given_.erase(id));
}

// --- the end

void SoakPeers::WindDown() {
  Settle();
  winding_down_ = true;
  TakeStores();
  for (auto it = taken_.begin(); it != taken_.end(); ++it) AnswerStores(it, 100);
  for (auto it = taken_.begin(); it != taken_.end(); ++it) {
    AnswerOpen(it);
    Revoke(it);
  }
  for (auto it = given_.begin(); it != given_.end(); ++it) GiveBack(it);
  AnswerWish();
  AdviseScaleUp();
  Settle();
  Advance(absl::Milliseconds(chance_.OneIn(4) ? 500 : 10));
}

bool SoakPeers::AtRest() {
  Settle();
  absl::MutexLock lock(&mutex_);
  return taken_.empty() && given_.empty() && messages_.empty();
}

}  // namespace swiftcache::engine::exec
