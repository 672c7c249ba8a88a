// SPDX-License-Identifier: Apache-2.0
#include "engine/exec/starvation.h"

#include <algorithm>
#include <utility>

namespace swiftcache::engine::exec {

std::vector<Starvation::Ended> Starvation::Look(int64_t refusals, bool are_final) {
  std::vector<Ended> ended;
  const absl::Time now = clock_.Now();
  const absl::Duration since_last = std::max(absl::ZeroDuration(), now - std::exchange(last_look_, now));
  next_look_ = absl::InfiniteFuture();
  if (!any_starved_ && !live_.any_parked() && !scheduler_.NeedsLeases(live_.longest_tokens())) return ended;
  any_starved_ = false;
  for (const auto& [id, request] : live_.by_id()) {
    Ended of_request{.request = request.get()};
    for (const auto& continuation : request->continuations) {
      if (continuation->done) continue;
      bool ends = Note(*continuation, refusals, since_last, now);
      ends |= are_final && !scheduler_.Fits(*continuation) && request->takes_what_there_is() &&
              continuation->output_tokens() > 0 && refusals > continuation->refusals_before;
      if (ends) of_request.continuations.push_back(continuation.get());
    }
    if (!of_request.continuations.empty()) ended.push_back(std::move(of_request));
  }
  return ended;
}

// True: its patience has ended.
bool Starvation::Note(Continuation& continuation, int64_t refusals, absl::Duration since_last, absl::Time now) {
  const bool starves = continuation.request->parked || scheduler_.Starves(continuation);
  absl::Duration& starved = continuation.starved;
  if (!starves) {
    starved = std::max(absl::ZeroDuration(), starved - since_last);
  } else if (continuation.starves) {
    starved += since_last;
  }
  if (!continuation.starves) continuation.refusals_before = refusals;
  continuation.starves = starves;
  any_starved_ |= starves || starved > absl::ZeroDuration();
  if (starves) next_look_ = std::min(next_look_, now + (patience_ - starved));
  return (starves && starved >= patience_) || scheduler_.IsExhausted(continuation);
}

}  // namespace swiftcache::engine::exec
