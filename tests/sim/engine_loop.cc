// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/engine_loop.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"

namespace swiftcache::sim {

namespace backend = engine::backend;
namespace exec = engine::exec;
using engine::coordinator::ClearMessage;
using engine::coordinator::LoopMessage;
using engine::coordinator::TakeBackMessage;
using engine::coordinator::UseMessage;

namespace {

constexpr size_t kMostRequests = 10, kMostConversations = 6;
constexpr absl::Duration kLeasePatience = absl::Milliseconds(300);
constexpr int kMostTurnsWithoutSleep = 1'000;

// The arena as the loop's device has it.
class ArenaMemory final : public backend::KvMemory {
 public:
  ArenaMemory(LeaseChannels& channels, int64_t bytes_in_a_millisecond)
      : channels_(channels), memory_(channels.memory()), bytes_in_a_millisecond_(bytes_in_a_millisecond) {}
  backend::DeviceAddress base() const override { return memory_->At(0); }
  int64_t bytes() const override { return memory_->num_cells() * kCellBytes; }
  int64_t page_bytes() const override { return kCellBytes; }
  backend::Fence Zero(std::span<const backend::ByteRange> ranges) override {
    for (const backend::ByteRange& range : ranges) {
      channels_.NoteWrite(range.begin, range.bytes);
      std::memset(backend::AddressSpace().Host(range.begin), 0, range.bytes);  // any bytes, of a part of a block too
    }
    return {};
  }
  backend::Fence Copy(std::span<const backend::ByteMove> moves) override {
    for (const backend::ByteMove& move : moves) {
      channels_.NoteWrite(move.to, move.bytes);
      std::copy_n(WordAt(move.from), move.bytes / 8, WordAt(move.to));
    }
    return {};
  }
  int64_t bytes_in_a_millisecond() const override { return bytes_in_a_millisecond_; }

 private:
  LeaseChannels& channels_;
  const std::shared_ptr<Memory> memory_;
  const int64_t bytes_in_a_millisecond_;
};

}  // namespace

class EngineLoop::Sink final : public exec::ResponseSink {
 public:
  Sink(EngineLoop& loop, std::string id) : loop_(loop), id_(std::move(id)) {}
  void OnTokens(exec::TokenEvent event) override {
    for (const int32_t token : event.token_ids) loop_.Hear(id_, token);
  }
  void OnDone(absl::Status status) override { loop_.End(id_, status); }

 private:
  EngineLoop& loop_;
  const std::string id_;
};

absl::Time EngineLoop::LoopClock::Now() const {
  if (loop_.fiber_.running() && loop_.parts_.sim.random.Chance(0.02)) {
    loop_.Pass(loop_.parts_.sim.random.Between(1, 60));
  }
  return loop_.parts_.process.LocalNow();
}

EngineLoop::EngineLoop(const Parts& parts, const Options& options)
    : parts_(parts),
      options_(options),
      block_tokens_(options.cells_per_block * kCellTokens),
      clock_(*this),
      away_(options.num_blocks),
      fiber_([this] { Run(); }) {
  Random& random = parts.sim.random;
  const backend::KvLayout layout = KnownModel::Layout(block_tokens_);
  loop_.emplace(LoopOptions(), layout,
                std::make_unique<KnownModel>(KnownModel::Options{.block_tokens = block_tokens_,
                                                                 .channels = parts.channels,
                                                                 .layer_time = [this] { return LayerTime(); },
                                                                 .pass = [this](Micros time) { Pass(time); },
                                                                 .bug = options.bug,
                                                                 .tally = parts.tally}),
                std::make_unique<ArenaMemory>(parts.channels, layout.block_bytes() * random.Between(1, 16)),
                exec::LoopSharing{.transport = &parts.channels, .coordinator = this, .urgency = &urgency_}, clock_,
                &parts.metrics, static_cast<exec::LoopObserver*>(this));
}

exec::EngineOptions EngineLoop::LoopOptions() const {
  Random& random = parts_.sim.random;
  exec::EngineOptions options;
  options.block_tokens = block_tokens_;
  options.max_num_seqs = random.Between(2, 6);
  options.max_num_batched_tokens = random.Between(8, 40);
  options.share = true;
  options.borrow = options_.borrows;
  options.scrub_on_return = !random.Chance(0.2);
  options.revoke_deadline = kRevokeDeadline;
  options.lease_patience = kLeasePatience;
  return options;
}

Micros EngineLoop::LayerTime() {
  Random& random = parts_.sim.random;
  const Micros longer = !options_.calm && random.Chance(0.02) ? random.Below(80'000) : 0;
  return random.Between(1'000, 5'000) + longer + std::exchange(hang_, 0);
}

// ---- The loop's thread.

void EngineLoop::Start() {
  ChooseTarget();
  parts_.process.After(parts_.sim.random.Below(2'000), [this] { fiber_.Resume(); });
  KeepAsking();
}

void EngineLoop::Run() {
  Random& random = parts_.sim.random;
  while (!fiber_.finishing()) {
    for (const std::string& id : std::exchange(cancels_, {})) loop_->Cancel(id, {});
    for (auto& request : std::exchange(arrivals_, {})) loop_->Accept(std::move(request));
    for (const LoopMessage& message : std::exchange(inbox_, {})) {
      Note(message);
      loop_->Handle(message);
    }
    const absl::Time due = loop_->Turn();
    CheckSleep(due);
    if (random.Chance(0.1)) CheckInvariants();
    if (!known_.empty() && !quiet_ && !options_.calm && random.Chance(0.004)) {  // as if nobody had used it for long
      parts_.coordinator.GiveBack(*std::next(known_.begin(), random.Below(num_regions())));
    }
    Pass(random.Between(5, random.Chance(0.05) ? 5'000 : 200));
    WaitUntil(due);
  }
}

// A loop that has nothing to do waits: a time to wake up that has passed is a core lost to the neighbours.
void EngineLoop::CheckSleep(absl::Time due) {
  const absl::Time now = parts_.process.LocalNow();
  if (loop_->has_work() || due > now) {
    turns_without_sleep_ = 0;
  } else if (++turns_without_sleep_ == kMostTurnsWithoutSleep) {
    parts_.sim.Fail(absl::StrCat("a loop without work went round ", kMostTurnsWithoutSleep, " times and never slept"));
  }
}

void EngineLoop::CheckInvariants() {
  if (const absl::Status sound = loop_->CheckInvariants(); !sound.ok()) parts_.sim.Fail(sound.ToString());
}

void EngineLoop::Pass(Micros time) {
  if (fiber_.finishing()) return;
  parts_.process.After(time, [this] { fiber_.Resume(); });
  fiber_.Yield();
}

void EngineLoop::WaitUntil(absl::Time due) {
  if (fiber_.finishing() || !inbox_.empty() || !arrivals_.empty() || !cancels_.empty()) return;
  const int64_t wait = ++waits_;
  waiting_ = true;
  if (due != absl::InfiniteFuture()) {
    parts_.process.At(parts_.process.WhenLocal(due), [this, wait] { Wake(wait); });
  }
  fiber_.Yield();
}

void EngineLoop::Wake(int64_t wait) {
  if (wait != waits_ || !std::exchange(waiting_, false)) return;
  fiber_.Resume();
}

void EngineLoop::Push(LoopMessage message) {
  urgency_.Note(message, parts_.process.LocalNow());
  if (const auto* clear = std::get_if<ClearMessage>(&message)) {
    clears_[clear->id] = clear->extent;
    if (options_.bug == PlantedBug::kLeaseTwice && IsAway(clear->extent)) return Cleared(clear->id, true);
  }
  if (const auto* lose = std::get_if<engine::coordinator::LoseMessage>(&message)) lost_.insert(lose->id);
  inbox_.push_back(std::move(message));
  if (waiting_) parts_.process.After(parts_.sim.random.Between(5, 100), [this, wait = waits_] { Wake(wait); });
}

void EngineLoop::Note(const LoopMessage& message) {
  if (const auto* use = std::get_if<UseMessage>(&message)) known_.insert(use->id);
  if (const auto* back = std::get_if<TakeBackMessage>(&message)) {
    const auto first = away_.begin() + back->extent.first_block;
    std::replace(first, first + back->extent.num_blocks, back->id.value(), int64_t{0});
  }
}

int64_t EngineLoop::num_away() const {
  return std::count_if(away_.begin(), away_.end(), [](int64_t lease) { return lease != 0; });
}

bool EngineLoop::IsAway(const engine::lease::Extent& extent) const {
  const auto first = away_.begin() + extent.first_block;
  return std::any_of(first, first + extent.num_blocks, [](int64_t lease) { return lease != 0; });
}

// ---- What it says.

void EngineLoop::Cleared(LeaseId id, bool ok) {
  const engine::lease::Extent extent = clears_.extract(id).mapped();
  if (ok) std::fill_n(away_.begin() + extent.first_block, extent.num_blocks, id.value());
  parts_.coordinator.Cleared(id, ok);
}

void EngineLoop::Drained(LeaseId id) {
  known_.erase(id);
  parts_.coordinator.Drained(id);
}

void EngineLoop::Dropped(LeaseId id) {
  known_.erase(id);
  if (lost_.erase(id) == 0) ++parts_.tally.unread;
  parts_.coordinator.Dropped(id);
}

void EngineLoop::NeedBack(int64_t blocks, int64_t blocks_lent) {
  ++parts_.tally.own_needs;
  int64_t unheard = 0;
  for (const LoopMessage& message : inbox_) {
    const auto* back = std::get_if<TakeBackMessage>(&message);
    if (back != nullptr) unheard += back->extent.num_blocks;
  }
  parts_.needs.Need(blocks, blocks_lent, unheard);
  const int64_t miscounted = options_.bug == PlantedBug::kMiscountsLent ? parts_.sim.random.Below(3) : 0;
  parts_.coordinator.NeedBack(blocks, blocks_lent + miscounted);
}

// ---- Clients.

// Who borrows wants more than there is at home.
void EngineLoop::ChooseTarget() {
  const int64_t blocks = options_.num_blocks;
  target_blocks_ = options_.borrows ? parts_.sim.random.Between(blocks, 2 * blocks)
                                    : parts_.sim.random.Between(blocks / 8, blocks * 7 / 8);
}

void EngineLoop::KeepAsking() {
  Random& random = parts_.sim.random;
  if (quiet_ || (options_.calm && options_.lends)) return;
  parts_.process.After(random.Between(2'000, 25'000), [this] { KeepAsking(); });
  if (random.Chance(0.05)) ChooseTarget();
  if (!asked_.empty() && random.Chance(0.02)) {
    asked_.begin()->second.cancelled = true;
    cancels_.push_back(asked_.begin()->first);
  }
  const bool large = options_.borrows && random.Chance(0.3);
  const int64_t most = large ? options_.num_blocks * 3 / 2 : options_.num_blocks / 2;
  if (asked_blocks_ < target_blocks_) Ask(std::min(random.Between(2, most), target_blocks_ - asked_blocks_));
  if (waiting_) Wake(waits_);
}

void EngineLoop::Burst(int64_t blocks) {
  if (!quiet_) Ask(std::min(blocks, options_.num_blocks * 3 / 4));
  if (waiting_) Wake(waits_);
}

void EngineLoop::Ask(int64_t blocks) {
  const int64_t tokens = blocks * block_tokens_, answer = parts_.sim.random.Between(1, 16);
  if (asked_.size() >= kMostRequests || tokens <= answer) return;
  const std::string id = absl::StrCat("r", ++last_request_);
  exec::Request request;
  request.request_id = id;
  request.prompt = Prompt(tokens - answer);
  request.sampling.temperature = 0;
  request.max_tokens = answer;
  request.ignore_eos = true;
  Asked& asked = asked_[id];
  asked.tokens = request.prompt;
  asked.blocks = blocks;
  asked.tokens_left = answer;
  for (const int32_t token : asked.tokens) asked.chain = KnownModel::Chain(asked.chain, token);
  asked_blocks_ += blocks;
  arrivals_.push_back(std::make_unique<exec::LiveRequest>(std::move(request), std::make_unique<Sink>(*this, id),
                                                          parts_.process.LocalNow(),
                                                          static_cast<int64_t>(asked.tokens.size()) + answer));
}

// An earlier conversation, as far as there is room, and something new.
std::vector<int32_t> EngineLoop::Prompt(int64_t tokens) {
  Random& random = parts_.sim.random;
  std::vector<int32_t> prompt;
  if (!conversations_.empty() && random.Chance(0.7)) {
    prompt = conversations_[random.Below(static_cast<int64_t>(conversations_.size()))];
    if (static_cast<int64_t>(prompt.size()) >= tokens) prompt.resize(tokens - 1);
  }
  while (static_cast<int64_t>(prompt.size()) < tokens) {
    prompt.push_back(static_cast<int32_t>(random.Below(KnownModel::kWrong)));
  }
  return prompt;
}

void EngineLoop::Hear(const std::string& id, int32_t token) {
  Asked& asked = asked_.at(id);
  if (token != KnownModel::Next(asked.chain)) {
    parts_.sim.Fail(absl::StrCat("wrong KV reaches a token: ", options_.instance, " gives ", id, " ", token, " after ",
                                 asked.tokens.size(), " tokens, not ", KnownModel::Next(asked.chain)));
  }
  --asked.tokens_left;
  asked.tokens.push_back(token);
  asked.chain = KnownModel::Chain(asked.chain, token);
}

void EngineLoop::End(const std::string& id, const absl::Status& status) {
  const Asked asked = std::move(asked_.extract(id).mapped());
  asked_blocks_ -= asked.blocks;
  const bool starved = absl::IsOutOfRange(status) && asked.blocks > options_.num_blocks;
  if (status.ok() && asked.tokens_left != 0) {
    parts_.sim.Fail(absl::StrCat(options_.instance, " ends ", id, " ", asked.tokens_left, " tokens early"));
  }
  if (!status.ok() && !starved && !(asked.cancelled && absl::IsCancelled(status))) {
    parts_.sim.Fail(absl::StrCat(options_.instance, " fails ", id, ": ", status.ToString()));
  }
  conversations_.push_back(asked.tokens);
  if (conversations_.size() > kMostConversations) conversations_.pop_front();
}

}  // namespace swiftcache::sim
