// SPDX-License-Identifier: Apache-2.0
// Whether memory that a donor needs back is back in time: a need at time t, of some blocks, is answered by t + the patience
// with the broker's advice + --revoke_deadline with that many of them, or with all that were lent at t where that is less.
//
//   watch.Need(blocks, lent, back_unheard);  // when the loop says so
//   watch.CameBack(blocks);                  // with each TakeBackMessage
#pragma once

#include <algorithm>
#include <cstdint>
#include <list>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/sim/plan.h"
#include "tests/sim/simulator.h"

namespace swiftcache::sim {

/// By the process's own clock. A process that was stopped meanwhile has the whole time again from there on.
/// Thread-safety: none. Ownership: borrows all that it is given.
class NeedWatch {
 public:
  NeedWatch(Simulator& sim, Process& process, Tally& tally, absl::Duration patience)
      : sim_(sim), process_(process), tally_(tally), patience_(patience) {}

  /// A new life: nobody waits.
  void Start() { needs_.clear(); }
  void ProcessContinues() { continued_at_ = process_.LocalNow(); }

  /// `lent`: as the loop counts them, which has not heard yet that `back_unheard` of them are back.
  void Need(int64_t blocks, int64_t lent, int64_t back_unheard) {
    const int64_t missing = std::min(blocks, lent) - back_unheard;
    if (missing <= 0) return;
    needs_.push_back({.blocks = missing, .since = process_.LocalNow()});
    Plan(std::prev(needs_.end()));
  }
  void CameBack(int64_t blocks) {
    for (Waiting& need : needs_) need.blocks -= blocks;
  }

 private:
  struct Waiting {
    int64_t blocks = 0;  // still missing
    absl::Time since;
  };
  using Place = std::list<Waiting>::iterator;

  void Plan(Place need) {
    process_.At(process_.WhenLocal(need->since + patience_), [this, need] { Look(need); });
  }
  void Look(Place need) {
    if (need->blocks > 0 && need->since < continued_at_) {
      need->since = continued_at_;
      return Plan(need);
    }
    if (need->blocks > 0) {
      sim_.Fail(absl::StrCat("of what was needed ", absl::FormatDuration(patience_), " ago ", need->blocks,
                             " blocks are not back"));
    }
    ++tally_.answered_needs;
    needs_.erase(need);
  }

  Simulator& sim_;
  Process& process_;
  Tally& tally_;
  const absl::Duration patience_;
  absl::Time continued_at_ = absl::InfinitePast();
  std::list<Waiting> needs_;
};

}  // namespace swiftcache::sim
