// SPDX-License-Identifier: Apache-2.0
#include "tests/engine/exec/sharing_soak.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace swiftcache::engine::exec {
namespace {

constexpr int64_t kVocab = 24;
constexpr int64_t kMaxLive = 8;
constexpr int64_t kMaxRounds = 5000;  // to the end of all work
constexpr int64_t kAllMessages = 1 << 20;

}  // namespace

SharingSoak::SharingSoak(const SoakOptions& options, SoakTally& tally)
    : options_(options),
      tally_(tally),
      chance_(options.seed),
      queue_({.pace = options.late ? LateQueue::Pace::kLockStep : LateQueue::Pace::kAtOnce}) {
  model_ = {.num_layers = chance_.Between(2, 4), .vocab_size = kVocab, .block_tokens = chance_.Between(1, 4)};
  model_.queue = &queue_;
  if (options.late) model_.space = backend::AddressSpace(LateKvMemory::kTurnedBits);
  using Bug = FakeModelOptions::Bug;
  if (options.bug == ReaderBug::kWordsComparedEarly) model_.bug = Bug::kChecksEarly;
  if (options.bug == ReaderBug::kStoredEarly) model_.bug = Bug::kWritesLate;
  if (options.bug == ReaderBug::kTokensReadEarly) model_.bug = Bug::kTokensLate;
  model_.on_step = [this](const FakeStep& step) {
    computed_ += step.num_rows;
    tally_.went_on += step.goes_on;
    EnterLayer(kGathered);
    return absl::OkStatus();
  };
  model_.on_layer = [this](int64_t layer) { EnterLayer(layer); };
  num_blocks_ = chance_.Between(8, 24);
  own_tokens_ = num_blocks_ / 2 * model_.block_tokens;  // the other half may be for streaming
  engine_.block_tokens = model_.block_tokens;
  engine_.max_num_seqs = chance_.Between(1, 6);
  engine_.max_num_batched_tokens = chance_.Between(2, 40);
  engine_.max_tokens_on_leases = chance_.Between(1, chance_.OneIn(2) ? 4 : 40);  // with it the watermark
  engine_.share = true;
  engine_.stream = options.stream;
  engine_.scrub_on_return = !chance_.OneIn(4);

  const int64_t block_bytes = model_.layout().block_bytes();
  peers_ = std::make_unique<SoakPeers>(
      SoakPeers::Options{.num_blocks = num_blocks_, .block_bytes = block_bytes, .scrubbed = engine_.scrub_on_return},
      chance_, tally_);
  peers_->transport().space = model_.space;
  peers_->transport().mapped = options.mapped;
  peers_->transport().measures = options.measures_links;
  peers_->transport().early_slots = options.bug == ReaderBug::kSlotsReusedEarly;
  peers_->transport().keeps_any_first = options.bug == ReaderBug::kSlotsKeepAnyFirst;
  peers_->transport().is_prompt = [this] { return chance_.OneIn(2); };
  peers_->transport().on_await = [this] {
    if (layer_ == kNoStep) ++tally_.fetches;
    Meanwhile();
  };
  auto memory =
      MakeLateKvMemory({.bytes = num_blocks_ * block_bytes, .block_bytes = block_bytes}, &queue_, model_.space);
  if (chance_.OneIn(2)) memory->pace = 1;  // so that it is cleared block by block
  memory->zeroes_late = options.bug == ReaderBug::kZeroedLate;
  peers_->Start(memory->arena().base());
  metrics_ = std::make_unique<EngineMetrics>(registry_, EngineMetrics::Geometry{model_.block_tokens, num_blocks_});
  loop_ = std::make_unique<StepLoop>(engine_, model_.layout(), std::make_unique<FakeModel>(model_), std::move(memory),
                                     LoopSharing{&peers_->transport(), &peers_->coordinator(), &peers_->urgency()},
                                     peers_->clock(), metrics_.get(), static_cast<LoopObserver*>(this));
  TellReaders();
}

std::string SharingSoak::Run() {
  for (int64_t i = 0; i < options_.actions; ++i) {
    Act();
    if (const std::string wrong = Check(); !wrong.empty()) return absl::StrCat("action ", i, ": ", wrong);
  }
  if (const std::string wrong = Drain(); !wrong.empty()) return wrong;
  const EngineLoad load = loop_->load();
  const transport::FakeTransport::Behind behind = peers_->transport().asked_behind();
  tally_.stores_behind += behind.stores;
  tally_.streams_behind += behind.streams;
  tally_.first_layers_found += peers_->transport().first_layers().found;
  tally_.steps += load.steps_total;
  tally_.preemptions += load.preemptions_total;
  tally_.donor_tokens += load.prompt_tokens_donor;
  if (const std::string wrong = CheckWorth(load); !wrong.empty()) return wrong;
  for (const Asked& asked : asked_) {
    if (const std::string wrong = CheckOutcome(asked); !wrong.empty()) return wrong;
  }
  return "";
}

void SharingSoak::Act() {
  switch (chance_.Between(0, 9)) {
    case 0:
    case 1:
      if (num_live() < kMaxLive) Ask();
      break;
    case 2:
      if (chance_.OneIn(4)) CancelSome();
      break;
    case 3:
      ServeBetweenSteps();
      break;
    case 4:
    case 5:
      Hear(chance_.Between(1, 8));
      break;
    case 6:
    case 7:
      peers_->Happen(/*in_step=*/false);
      break;
    default:
      for (int64_t steps = chance_.Between(1, 6); steps > 0; --steps) Step();
  }
}

// --- requests

int64_t SharingSoak::num_live() const {
  return std::count_if(asked_.begin(), asked_.end(), [](const Asked& asked) { return !asked.recording->done(); });
}

// One of a few beginnings, or all that was said in an earlier conversation; then something new.
std::vector<int32_t> SharingSoak::Prompt(int64_t max_tokens) {
  std::vector<int32_t> prompt;
  if (!asked_.empty() && !chance_.OneIn(4)) {
    const auto num_asked = static_cast<int64_t>(asked_.size());
    const Asked& earlier = asked_[chance_.Between(std::max<int64_t>(0, num_asked - 8), num_asked - 1)];
    prompt = earlier.request.prompt;
    for (const int32_t token : earlier.recording->tokens()) prompt.push_back(token);
  } else {
    Chance beginning(options_.seed * 4 + chance_.Between(0, 3));
    for (int64_t i = beginning.Between(0, own_tokens_ / 2); i > 0; --i)
      prompt.push_back(beginning.Between(0, kVocab - 1));
  }
  for (int64_t i = chance_.Between(1, 6); i > 0; --i) prompt.push_back(chance_.Between(0, kVocab - 1));
  if (static_cast<int64_t>(prompt.size()) > max_tokens) prompt.resize(max_tokens);
  return prompt;
}

void SharingSoak::Ask() {
  const bool large = chance_.OneIn(10);
  const int64_t room = large ? 3 * own_tokens_ : own_tokens_;
  Asked asked;
  const int64_t max_tokens = std::min<int64_t>(chance_.Between(1, 10), room - 1);
  asked.request.prompt = Prompt(room - max_tokens);
  asked.request.request_id = absl::StrCat("r", asked_.size());
  asked.request.sampling.temperature = 0;
  asked.request.max_tokens = max_tokens;
  asked.request.ignore_eos = true;
  asked.request.n = chance_.OneIn(8) ? 2 : 1;
  asked.request.priority = chance_.OneIn(8) ? 1 : 0;
  asked.request.cache_salt = std::string(chance_.OneIn(8), 'x');
  asked.fits_own_memory = !large;
  asked.recording = std::make_shared<Recording>();

  auto live = std::make_unique<LiveRequest>(asked.request, std::make_unique<RecordingSink>(asked.recording),
                                            peers_->clock().Now(),
                                            static_cast<int64_t>(asked.request.prompt.size()) + max_tokens);
  ++tally_.requests;
  asked_.push_back(std::move(asked));
  loop_->Accept(std::move(live));
}

void SharingSoak::CancelSome() {
  if (asked_.empty()) return;
  Asked& asked = asked_[chance_.Between(0, static_cast<int64_t>(asked_.size()) - 1)];
  if (asked.recording->done()) return;
  asked.cancelled = true;
  ++tally_.cancelled;
  loop_->Cancel(asked.request.request_id, asked.request.number);
}

// --- the loop, and what happens meanwhile

void SharingSoak::Step() {
  if (!loop_->has_work()) return;
  peers_->Settle();
  (void)loop_->Step();
  layer_ = kNoStep;
  TellReaders();
  peers_->LoopSpoke();
}

void SharingSoak::ServeBetweenSteps() {
  loop_->ServeBetweenSteps();
  peers_->LoopSpoke();
}

void SharingSoak::Hear(int64_t max_messages) {
  for (const LoopMessage& message : peers_->TakeMessages(max_messages)) {
    loop_->Handle(message);
    peers_->LoopSpoke();
  }
}

void SharingSoak::EnterLayer(int64_t layer) {
  layer_ = layer;
  TellReaders();
  Meanwhile();
}

void SharingSoak::Meanwhile() {
  if (options_.late && chance_.OneIn(2)) queue_.RunSome(chance_.Between(1, 4));
  if (!chance_.OneIn(6)) return;
  peers_->LoopSpoke();
  peers_->Happen(/*in_step=*/layer_ != kNoStep);
}

void SharingSoak::TellReaders() {
  bool tell = true;
  switch (options_.bug) {
    default:
      break;
    case ReaderBug::kNoGenerationCheck:
      tell = false;
      break;
    case ReaderBug::kOnlyFirstCheck:
      tell = layer_ < 1;
      break;
    case ReaderBug::kMovesUnchecked:
      tell = layer_ != kNoStep;
      break;
  }
  peers_->transport().TellReaders(tell);
}

// --- what must be

// What is computed again because of leases has a bound: less for who fits into own memory than for who does not.
void SharingSoak::OnEnded(const LiveRequest& request) {
  for (const auto& continuation : request.continuations) {
    const int64_t tokens = continuation->tokens.size(), again = continuation->again_tokens;
    const bool fits = tokens <= own_tokens_;
    const int64_t bound = tokens * (fits ? sched::Scheduler::kMaxLosses : sched::Scheduler::kMaxAgain);
    tally_.again += again;
    tally_.most_losses = std::max(tally_.most_losses, continuation->losses);
    if (again <= bound + engine_.max_num_batched_tokens &&
        (!fits || continuation->losses <= sched::Scheduler::kMaxLosses)) {
      continue;
    }
    unbounded_ =
        absl::StrCat(request.request.request_id, " computed ", again, " tokens again after ", continuation->losses,
                     " losses, for ", tokens, " of its own, where ", own_tokens_, " fit into own memory");
  }
}

// What sharing was worth, in tokens and in bytes, adds up.
std::string SharingSoak::CheckWorth(const EngineLoad& load) {
  int64_t prompts = 0;
  for (const Asked& asked : asked_) prompts += asked.request.n * static_cast<int64_t>(asked.request.prompt.size());
  const kv::SharingWorth& worth = load.sharing;
  const int64_t again = worth.again_for_loans_tokens + worth.again_for_losses_tokens;
  if (worth.saved_tokens > prompts) return absl::StrCat("saved ", worth.saved_tokens, " of ", prompts, " tokens");
  if (again > computed_) return absl::StrCat("computed ", again, " tokens again, of ", computed_);
  const SoakPeers::Dealings dealings = peers_->dealings();
  if (!dealings.offered && worth.again_for_loans_tokens > 0) return "a loan cost something, and there was none";
  if (!dealings.borrowed && worth.saved_tokens + worth.again_for_losses_tokens > 0)
    return "no lease was worth something";
  tally_.sharing += worth;
  peers_->TallyAccounts();
  return "";
}

std::string SharingSoak::Check() const {
  if (!peers_->failure().empty()) return peers_->failure();
  if (!unbounded_.empty()) return unbounded_;
  const absl::Status status = loop_->CheckInvariants();
  return status.ok() ? "" : std::string(status.message());
}

// Nothing new comes, what was asked is answered, and time goes on.
std::string SharingSoak::Drain() {
  for (int64_t round = 0; round < kMaxRounds; ++round) {
    const bool has_work = loop_->has_work();
    if (!has_work && peers_->AtRest()) return CheckAtRest();
    Hear(kAllMessages);
    Step();
    ServeBetweenSteps();
    if (!has_work || chance_.OneIn(4)) peers_->WindDown();
    if (const std::string wrong = Check(); !wrong.empty()) return absl::StrCat("round ", round, ": ", wrong);
  }
  return absl::StrCat("no end: ", num_live(), " requests live, peers ", peers_->AtRest() ? "" : "not ", "at rest");
}

std::string SharingSoak::CheckAtRest() {
  ServeBetweenSteps();
  const EngineLoad load = loop_->load();
  if (load.kv_blocks_used + load.kv_blocks_leased_in + load.kv_blocks_leased_out > 0) return "blocks are left in use";
  if (load.kv_blocks_free + load.kv_blocks_cached != load.kv_blocks_total) return "own memory is not whole";
  if (peers_->transport().loads_under_way() > 0 || !peers_->AtRest()) return "something is still under way";
  if (!peers_->urgency().empty()) return "a lease that has ended is urgent";
  if (!peers_->coordinator().Given().empty()) return "the coordinator holds a lease that has ended";
  if (const std::string wrong = peers_->CheckAccounts(); !wrong.empty()) return wrong;
  return Check();
}

std::string SharingSoak::CheckOutcome(const Asked& asked) {
  const std::string& id = asked.request.request_id;
  if (!asked.recording->done()) return absl::StrCat(id, " was not answered");
  const absl::Status status = asked.recording->Wait();
  const bool starved = absl::IsOutOfRange(status) && !asked.fits_own_memory;
  tally_.starved += starved;
  if (!status.ok() && !starved && !(asked.cancelled && absl::IsCancelled(status))) {
    return absl::StrCat(id, " failed: ", std::string(status.message()));
  }
  for (int32_t i = 0; i < asked.request.n; ++i) {
    const std::vector<int32_t> tokens = asked.recording->tokens(i);
    const auto produced = static_cast<int64_t>(tokens.size());
    tally_.tokens += produced;
    if (status.ok() && produced != asked.request.max_tokens) return absl::StrCat(id, " ended early");
    if (tokens != FakeGreedy(model_, asked.request.prompt, produced)) return absl::StrCat(id, " has a wrong token");
  }
  return "";
}

}  // namespace swiftcache::engine::exec
