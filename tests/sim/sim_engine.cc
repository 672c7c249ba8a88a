// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/sim_engine.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"

namespace swiftcache::sim {

using engine::coordinator::DrainMessage;
using engine::coordinator::LoopMessage;
using engine::coordinator::LoseMessage;
using engine::coordinator::TakeBackMessage;
using engine::lease::Lease;

namespace {

constexpr Micros kAskedBackFor = 60'000, kLeaves = 100'000;
/// Fences are planned so much before their deadlines (engine/coordinator/donor_side.cc), which covers kLatestTurn.
const absl::Duration kFenceEarly = kRevokeDeadline / 8;
/// Local timers fire on a microsecond; clocks of other rates round.
constexpr absl::Duration kTimerSlack = absl::Microseconds(10);
/// Of a need. It waits for three turns: that hears it, that waits for advice no longer, that fences.
const absl::Duration kNeedPatience =
    kAdvicePatience + kRevokeDeadline - kFenceEarly + 3 * (absl::Microseconds(kLatestTurn) + kTimerSlack);

}  // namespace

SimEngine::SimEngine(Simulator& sim, Network& network, LeaseChannels::Directory& directory, BrokerAddress& broker,
                     Tally& tally, const Options& options)
    : sim_(sim),
      tally_(tally),
      options_(options),
      blindfold_(options.bug, options.num_blocks),
      process_(sim),
      clock_(process_),
      loop_metrics_(metrics_,
                    {.block_tokens = kCellTokens * options.cells_per_block, .num_blocks = options.num_blocks}),
      channels_(sim, network, directory, tally, process_, options.endpoint, options.bug,
                {.knows = [this](LeaseId id) { return loop_->Knows(id); },
                 .has_given_up = [this](LeaseId id, int64_t cell) { return HasGivenUp(id, cell); },
                 .pass = [this](Micros time) { loop_->Pass(time); }}),
      client_(sim, network, broker, process_, tally,
              {.endpoint = options.endpoint, .bug = options.bug, .blindfold = blindfold_}),
      needs_(sim, process_, tally, kNeedPatience) {
  process_.after_each = [this] { TakeTurn(); };
}

void SimEngine::Start() {
  process_.Start();
  instance_ = absl::StrCat(options_.name, "-", process_.life());
  sim_.Trace([&] { return absl::StrCat(instance_, " starts"); });
  coordinator_.emplace(engine::coordinator::CoordinatorOptions{.instance_id = instance_,
                                                               .revoke_deadline = kRevokeDeadline,
                                                               .broker_patience = kAdvicePatience,
                                                               .num_blocks = blindfold_.num_blocks(),
                                                               .block_bytes = options_.cells_per_block * kCellBytes,
                                                               .never_lent_blocks = never_lent_blocks(),
                                                               .min_request_interval = absl::Milliseconds(60),
                                                               .max_request_interval = absl::Milliseconds(240)},
                       clock_, metrics_);
  channels_.Start(instance_, options_.num_blocks * options_.cells_per_block, *coordinator_);
  loop_.emplace(EngineLoop::Parts{sim_, process_, channels_, *coordinator_, needs_, tally_, loop_metrics_},
                EngineLoop::Options{.instance = instance_,
                                    .num_blocks = options_.num_blocks,
                                    .cells_per_block = options_.cells_per_block,
                                    .lends = options_.lends,
                                    .borrows = options_.borrows,
                                    .calm = options_.calm,
                                    .bug = options_.bug});
  needs_.Start();
  leaving_ = false;
  planned_turn_ = next_turn_ = 0;
  coordinator_->Attach(&channels_, &client_, [this](LoopMessage message) { ToLoop(std::move(message)); });
  client_.Start(Info(), *coordinator_);
  loop_->Start();
}

void SimEngine::Die() {
  sim_.Trace([&] { return absl::StrCat(instance_, " dies"); });
  tally_.stray_messages += ignored();
  loop_->Die();
  process_.Kill();
  channels_.Die();
}

void SimEngine::ContinueProcess() {
  continued_at_ = process_.LocalNow();
  needs_.ProcessContinues();
  process_.Continue();
}

void SimEngine::ReturnAll() {
  process_.Run([this] { coordinator_->ReturnAll(); });
}

// As on SIGTERM: asks back what it lends, then gives and takes everything back, signs off, and is gone.
void SimEngine::Leave() {
  leaving_ = true;
  process_.Run([this] { coordinator_->AskBackAll(process_.LocalNow() + absl::Microseconds(kAskedBackFor)); });
  process_.After(kAskedBackFor / 4, [this] { Need(loop_->num_away()); });  // which does not wait so long
  process_.After(kAskedBackFor, [this] { coordinator_->ReturnAll(); });
  process_.After(kLeaves, [this] { client_.SignOff(); });
}

broker::membership::EngineInfo SimEngine::Info() const {
  return {.name = options_.name,
          .instance_id = instance_,
          .model_name = absl::StrCat("model-", options_.endpoint % 3),
          .address = "localhost:1",
          .kv = {.num_layers = 2,
                 .num_kv_heads = 1,
                 .head_dim = 4,
                 .kv_cache_dtype = "bf16",
                 .block_tokens = kCellTokens * options_.cells_per_block,
                 .block_bytes = options_.cells_per_block * kCellBytes,
                 .num_blocks = options_.num_blocks},
          .max_model_len_tokens = 1024,
          .model_card_hash = "",
          .state = broker::membership::EngineState::kReady,
          .lease_channel = instance_,
          .node_id = "node",
          .page_bytes = kCellBytes,
          .never_lent_blocks = never_lent_blocks()};
}

std::vector<Lease> SimEngine::given() const {
  std::vector<Lease> leases = coordinator_->donor().Given();
  for (Lease& lease : leases) lease = blindfold_.Seen(lease);
  return leases;
}

std::string SimEngine::Leftovers() const {
  std::string found;
  const auto count = [&](const char* what, int64_t number) {
    if (number > 0) absl::StrAppend(&found, found.empty() ? "" : ", ", number, " ", what);
  };
  count("leases given", static_cast<int64_t>(coordinator_->donor().Held().size()));
  count("leases taken", coordinator_->borrower().num_leases());
  count("grants", channels_.num_grants());
  count("channels", channels_.num_open());
  count("regions", loop_->num_regions());
  count("requests", loop_->num_requests());
  count("reports", client_.num_reports());
  count("blocks away", loop_->num_away());
  return found;
}

// ---- The coordinator's thread: it is prompt, mostly.

void SimEngine::TakeTurn() {
  if (sim_.now() < next_turn_) return;  // it is planned
  (void)coordinator_->Turn(absl::ZeroDuration());
  if (const absl::Status sound = coordinator_->donor().CheckInvariants(); !sound.ok()) sim_.Fail(sound.ToString());
  if (const absl::Status sound = coordinator_->borrower().CheckInvariants(); !sound.ok()) sim_.Fail(sound.ToString());
  if (sim_.random.Chance(0.05)) {
    const Micros latest = options_.bug == PlantedBug::kLateCoordinator ? 10 * kLatestTurn : kLatestTurn;
    next_turn_ = sim_.now() + sim_.random.Between(20, sim_.random.Chance(0.1) ? latest : 200);
    return PlanTurn(next_turn_);
  }
  const absl::Time next = coordinator_->NextDeadline();
  if (next == absl::InfiniteFuture()) return;
  const Micros when = process_.WhenLocal(next);
  if (planned_turn_ <= sim_.now() || planned_turn_ > when) PlanTurn(when);
}

void SimEngine::PlanTurn(Micros when) {
  planned_turn_ = when;
  process_.At(when, [] {});  // TakeTurn does the rest
}

// ---- The coordinator's word to the loop.

void SimEngine::ToLoop(LoopMessage message) {
  std::visit([this](auto& m) { Look(m); }, message);
  loop_->Push(std::move(message));
}

void SimEngine::Look(TakeBackMessage& message) {
  message.extent = blindfold_.Seen(message.extent);
  const int64_t id = message.id.value();
  if (channels_.granted(message.id)) {
    sim_.Fail(absl::StrCat(instance_, " takes lease ", id, " back before it is fenced"));
  }
  sim_.Trace([&] { return absl::StrCat(instance_, ": takes back lease ", id); });
  needs_.CameBack(message.extent.num_blocks);
  const std::optional<absl::Time> deadline = channels_.TakeRevokeDeadline(message.id);
  if (!deadline.has_value()) return;
  const absl::Duration late = process_.LocalNow() - std::max(*deadline, continued_at_);
  if (late > kFenceEarly + kTimerSlack) {
    sim_.Fail(absl::StrCat(instance_, " has lease ", id, " back ", absl::FormatDuration(late), " after its deadline"));
  }
}

void SimEngine::Look(const DrainMessage& message) {
  if (options_.bug == PlantedBug::kReleaseBeforeDrain) coordinator_->Drained(message.id);
}

void SimEngine::Look(const LoseMessage& message) {
  ++tally_.lost_in_use;
  sim_.Trace([&] { return absl::StrCat(instance_, ": loses lease ", message.id.value()); });
}

bool SimEngine::HasGivenUp(LeaseId id, int64_t cell) const {
  return loop_->away()[cell / options_.cells_per_block] == id.value();
}

}  // namespace swiftcache::sim
