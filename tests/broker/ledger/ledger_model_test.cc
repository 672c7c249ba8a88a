// SPDX-License-Identifier: Apache-2.0
// The ledger against a model that knows one thing: who owns each block of each arena.
#include <map>
#include <random>
#include <set>

#include "tests/broker/ledger/ledger_fixture.h"
#include "tests/fakes/random_seed.h"

namespace swiftcache::broker::ledger {
namespace {

const std::vector<std::string> kNames = {"a", "b", "c", "d"};
const std::string kReserved = "d";  // it never lends its first
constexpr int64_t kReserve = 100;   // blocks

// Follows the changes that are told, as every replica does, and refuses a block with two users.
class Model {
 public:
  void Apply(const Change& change) {
    const Lease& lease = change.lease;
    if (lease.state == LeaseState::kOffered && lease.donor.name == kReserved) {
      ASSERT_GE(lease.extent.first_block, kReserve);
    }
    const auto it = leases_.find(lease.id);
    if (it == leases_.end()) {
      ASSERT_EQ(change.before, std::nullopt);
      for (int64_t block = lease.extent.first_block; block < lease.extent.end(); ++block) {
        const bool free = users_.emplace(std::pair(lease.donor, block), lease.id).second;
        ASSERT_TRUE(free) << "block " << block << " of " << lease.donor.name << " is on two leases";
      }
      leases_[lease.id] = lease;
      return;
    }
    ASSERT_EQ(it->second.extent, lease.extent);
    ASSERT_EQ(it->second.borrower, lease.borrower);
    ASSERT_EQ(change.before.value_or(it->second.state), it->second.state);
    it->second = lease;
    if (!HasEnded(lease.state)) return;
    for (int64_t block = lease.extent.first_block; block < lease.extent.end(); ++block) {
      users_.erase({lease.donor, block});
    }
    leases_.erase(it);
  }
  std::vector<Lease> Snapshot() const {
    std::vector<Lease> all;
    for (const auto& [id, lease] : leases_) all.push_back(lease);
    return all;
  }
  void Clear() {
    leases_.clear();
    users_.clear();
  }

 private:
  std::map<LeaseId, Lease> leases_;
  std::map<std::pair<Party, int64_t>, LeaseId> users_;
};

class LedgerModelTest : public LedgerTest {
 protected:
  int64_t Draw(int64_t low, int64_t high) { return std::uniform_int_distribution(low, high)(random_); }
  const std::string& AnyName() { return kNames[Draw(0, kNames.size() - 1)]; }
  Party Living(const std::string& name) { return {name, absl::StrCat("i", instances_[name])}; }

  Engine EngineNow(const std::string& name) {
    Engine engine = EngineOf(name);
    engine.party = Living(name);
    if (name == kReserved) engine.never_lent_blocks = kReserve;
    if (name == "b") engine.block_bytes = 2 * kBlock;
    if (name == "c") engine.block_bytes = 3 * kBlock / 2;  // a block ends within a page
    return engine;
  }
  // What the engines would claim: what the table says, now and then with something lost.
  std::vector<Lease> Claims(const std::string& name) {
    std::vector<Lease> held;
    for (const Lease& lease : before_) {
      const bool mine = lease.donor == Living(name) && lease.epoch.has_value();
      if (mine && Draw(0, 9) > 0) held.push_back(AsGranted(lease));
      if (mine && Draw(0, 9) == 0) {  // a mad donor claims it twice
        held.push_back(AsGranted(lease));
        held.back().id = LeaseId(1'000'000 + ++twins_);
        held.back().epoch = Epoch(held.back().id.value());  // as ReportSomething has it
      }
    }
    return held;
  }
  static Lease AsGranted(Lease lease) {
    lease.state = LeaseState::kGranted;
    return lease;
  }
  // What a seed does depends on it alone.
  void Begin(uint32_t seed) {
    random_.seed(seed);
    model_.Clear();
    instances_.clear();
    before_.clear();
    twins_ = capabilities_ = 0;
    now_ = absl::UnixEpoch();
    Restart(prefix_ = 1);
  }
  void Step() {
    const std::string& name = AnyName();
    const auto leases = model_.Snapshot();
    switch (Draw(0, 13)) {
      case 0:
        before_ = leases;
        ledger_->AddEngine(EngineNow(name), Claims(name), now_);
        break;
      case 1:
        if (Draw(0, 3) == 0) ledger_->RemoveEngine(name, now_), ++instances_[name];
        break;
      case 2:
        (void)ledger_->ReportWindow(Living(name), {.used_blocks = Draw(0, kBlocks)}, now_);
        break;
      case 3:
      case 4:
      case 5:
        (void)ledger_->RequestLease(
            Living(name),
            {.key = absl::StrCat(Draw(0, 200)), .want_bytes = Draw(1, 60) * kBlock, .waiting_tokens = Draw(0, 5000)},
            now_);
        break;
      case 6:
        if (Draw(0, 1) == 0)
          (void)ledger_->LimitLease(name + "-model", Draw(0, 100) * kBlock, now_);
        else
          (void)ledger_->LimitLease(name + "-model", std::nullopt, now_);
        break;
      case 7:
        now_ += absl::Milliseconds(Draw(1, 1500));
        ledger_->Tick(now_);
        break;
      case 8:
        if (Draw(0, 20) == 0) RestartBroker();
        break;
      default:
        if (!leases.empty()) ReportSomething(leases[Draw(0, leases.size() - 1)]);
    }
  }
  void ReportSomething(const Lease& lease) {
    if (Draw(0, 9) == 0) {
      (void)ledger_->RevokeLease(lease.id, now_);
      return;
    }
    Lease said = lease;
    said.state = static_cast<LeaseState>(Draw(0, 4));
    if (!said.epoch.has_value() || Draw(0, 20) == 0) said.epoch = Epoch(lease.id.value());
    const Party who = Draw(0, 5) == 0 ? Living(AnyName()) : lease.donor;
    const absl::Status status = ledger_->ReportLease(who, said, now_);
    ++outcomes_[status.code()];
    ExpectRightAnswer(lease, who, said, status);
  }
  // The rules, written down a second time.
  void ExpectRightAnswer(const Lease& lease, const Party& who, const Lease& said, const absl::Status& status) {
    const auto expect = [&](absl::StatusCode code) {
      EXPECT_EQ(status.code(), code) << StateName(said.state) << status;
    };
    if (who != Living(who.name)) return expect(absl::StatusCode::kUnavailable);
    if (absl::IsUnavailable(status)) return;  // not entered at present
    if (who != lease.donor) return expect(absl::StatusCode::kPermissionDenied);
    if (said.state == LeaseState::kOffered || said.state == LeaseState::kRevoking) {
      return expect(absl::StatusCode::kInvalidArgument);
    }
    const bool other_epoch = said.state == LeaseState::kGranted && lease.epoch.has_value() && lease.epoch != said.epoch;
    if (other_epoch) return expect(absl::StatusCode::kFailedPrecondition);
    expect(absl::StatusCode::kOk);
  }
  void RestartBroker() {
    before_ = model_.Snapshot();
    Restart(++prefix_);
    model_.Clear();
    for (const std::string& name : kNames) {
      if (Draw(0, 4) > 0) ledger_->AddEngine(EngineNow(name), Claims(name), now_);
    }
  }

  std::mt19937 random_;
  Model model_;
  std::map<std::string, int> instances_;
  std::vector<Lease> before_;
  std::map<absl::StatusCode, int64_t> outcomes_;
  uint32_t prefix_ = 1;
  int64_t twins_ = 0;
};

TEST_F(LedgerModelTest, OneOwnerPerBlockAndReplicasThatAgreeUnderAnySequenceOfCalls) {
  const auto only = FromEnvironment("TEST_SEED");
  const uint32_t first_seed = RandomSeed(), num_seeds = only ? 1 : 40;
  for (uint32_t seed = first_seed; seed != first_seed + num_seeds; ++seed) {
    SCOPED_TRACE(Again(seed));
    Begin(seed);
    for (int step = 0; step < 1500; ++step) {
      ASSERT_NO_FATAL_FAILURE(Step());
      for (const Change& change : ledger_->TakeChanges()) ASSERT_NO_FATAL_FAILURE(model_.Apply(change));
      ASSERT_EQ(ledger_->Snapshot(), model_.Snapshot());
      ASSERT_EQ(ledger_->CheckInvariants(), absl::OkStatus());
      if (HasFailure()) FAIL() << "at step " << step;
    }
  }
  if (only) return;
  // The walk went everywhere.
  for (const absl::StatusCode code : {absl::StatusCode::kOk, absl::StatusCode::kInvalidArgument,
                                      absl::StatusCode::kPermissionDenied, absl::StatusCode::kUnavailable}) {
    EXPECT_GT(outcomes_[code], 100) << absl::StatusCodeToString(code);
  }
}

}  // namespace
}  // namespace swiftcache::broker::ledger
