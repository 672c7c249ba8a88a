// SPDX-License-Identifier: Apache-2.0
#include "engine/exec/lease_use.h"

#include <algorithm>
#include <cstdlib>

namespace swiftcache::engine::exec {

namespace {

constexpr int kIdleLooks = 16;  // at leases, while one that nobody uses is kept
// Of leases that go back because nobody uses them: the loop forgets the blocks of each, and somebody may wait for it.
constexpr int kGivenBackAtOnce = 16;
constexpr absl::Duration kBetweenGiveBacks = absl::Seconds(1);
// All leases are looked at in this time, one after the other (of more than 66: 66 a second), and not more often: what
// peers may say is bounded.
constexpr absl::Duration kHeatRound = absl::Seconds(1);
constexpr absl::Duration kBetweenHeatLooks = absl::Milliseconds(15);
constexpr int kHeatDivisor = 8;  // a donor hears of heat that differs by this part

}  // namespace

void LeaseUse::SetKeepIdle(absl::Duration keep) {
  keep_idle_ = std::max(keep, kLeastIdle);
  if (!parts_.regions->empty()) next_idle_look_ = parts_.clock->Now();
}

void LeaseUse::Added() {
  next_idle_look_ = std::min(next_idle_look_, parts_.clock->Now() + keep_idle_ / kIdleLooks);
  heat_looks_left_ = parts_.regions->size();
}

void LeaseUse::Look() {
  GiveBackIdle();
  TellHeat();
}

absl::Time LeaseUse::next_look() const {
  return heat_looks_left_ > 0 ? std::min(next_idle_look_, next_heat_look_) : next_idle_look_;
}

// What lies there was of no use for longer than a pausing donor keeps what its prompts found worth keeping.
void LeaseUse::GiveBackIdle() {
  const absl::Time now = parts_.clock->Now();
  if (now < next_idle_look_) return;
  next_idle_look_ = parts_.regions->empty() ? absl::InfiniteFuture() : now + keep_idle_ / kIdleLooks;
  int given = 0;
  for (auto& [id, region] : *parts_.regions) {
    if (!region.departure.in_use() || region.departure.given_back()) continue;
    if (parts_.cache->TakeUse(id)) region.last_use = now;
    if (now - region.last_use < keep_idle_) continue;
    if (given++ == kGivenBackAtOnce) {
      next_idle_look_ = now + kBetweenGiveBacks;
      return;
    }
    region.departure.GiveBack();
    parts_.coordinator->GiveBack(region.lease);
  }
}

// To look at a lease is to look at each place there: leases have their turns, also those that came while a step ran.
void LeaseUse::TellHeat() {
  const absl::Time now = parts_.clock->Now();
  const int64_t leases = parts_.regions->size();
  if (heat_looks_left_ == 0) next_heat_look_ = std::max(next_heat_look_, now);  // none was due
  heat_looks_left_ = parts_.scheduler->running().empty() ? std::min(heat_looks_left_, leases) : leases;
  next_heat_look_ = std::max(next_heat_look_, now - kHeatRound);
  for (; heat_looks_left_ > 0 && next_heat_look_ <= now; --heat_looks_left_) {
    next_heat_look_ += std::max(kHeatRound / leases, kBetweenHeatLooks);
    TellHeatOfNext();
  }
}

void LeaseUse::TellHeatOfNext() {
  LeasedRegion& region = parts_.regions->NextInTurn(heat_looked_at_);
  heat_looked_at_ = region.region;
  if (!region.departure.in_use()) return;
  const int64_t heat = parts_.cache->Heat(region.region), told = region.told_heat.value_or(0);
  if (region.told_heat && std::abs(heat - told) <= std::max(heat, told) / kHeatDivisor) return;
  region.told_heat = heat;
  parts_.coordinator->NoteHeat(region.lease, heat);
}

}  // namespace swiftcache::engine::exec
