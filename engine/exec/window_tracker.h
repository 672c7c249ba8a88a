// SPDX-License-Identifier: Apache-2.0
// What an engine needed of its arena lately: the input of scale-down (Algorithm 1, line 22).
//
//   const std::optional<coordinator::Window> window = tracker.Follow(cache, waiting_blocks, longest_request_tokens, now);
//   if (window) coordinator.ReportWindow(*window);
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <optional>
#include <utility>

#include "absl/time/time.h"
#include "engine/coordinator/lease_broker.h"
#include "engine/kv/kv_cache.h"
#include "engine/kv/reuse_meter.h"

namespace swiftcache::engine::exec {

/// The window is cut into slices, so that its memory is bounded and idle time ages what was seen.
/// Thread-safety: none. Ownership: a value. Errors: none. Units: blocks, tokens.
class WindowTracker {
 public:
  struct Options {
    absl::Duration window = absl::Seconds(10);
    absl::Duration min_interval = absl::Milliseconds(200);  // between reports
    int64_t num_blocks = 0;                                 // of the own arena
  };
  explicit WindowTracker(const Options& options) : options_(options) {}

  /// What an earlier, shorter window has dropped does not come back.
  void SetWindow(absl::Duration window) { options_.window = window; }

  /// How many windows what prompts found of the cache counts: so long is a cache kept whose engine pauses.
  static constexpr int kReuseWindows = 16;
  /// An engine that has had nothing to do for so long, or for the window if that is shorter, pauses. If its own memory
  /// is too small for what it is asked (kv::Reuse::Thrashes), it keeps half of that cache until it is asked again: the
  /// neighbours that use the other half find more in it than it loses of what it mostly computes again anyhow.
  /// tests/sim/README.md has the figures.
  static constexpr absl::Duration kPause = absl::Seconds(10);

  void Note(absl::Time now, int64_t used_blocks, int64_t waiting_blocks, int64_t request_tokens);
  void NoteReuse(absl::Time now, const kv::Reuse& reuse);
  /// What is to be reported: nothing where it is what was reported last, or that was a moment ago.
  std::optional<coordinator::Window> TakeUpdate(absl::Time now);
  /// The three, of this cache, which keeps from then on what is reported that it does.
  std::optional<coordinator::Window> Follow(kv::KvCache& cache, int64_t waiting_blocks, int64_t request_tokens,
                                            absl::Time now);
  /// When TakeUpdate may have something although nothing was noted; infinite future: never.
  absl::Time NextUpdate() const;

 private:
  struct Slice {
    absl::Time begin;
    int64_t max_request_tokens = 0, peak_blocks = 0;
  };
  static constexpr absl::Duration kLongestSlice = absl::Seconds(1);
  static constexpr int kLeastSlices = 10;  // so much too early a peak may be forgotten, in parts of the window
  coordinator::Window At(absl::Time now);
  absl::Time PauseBegins() const { return busy_at_ + std::min(kPause, options_.window); }

  Options options_;
  std::deque<Slice> slices_;
  std::deque<std::pair<absl::Time, kv::Reuse>> reuse_;  // by the beginning of a window
  int64_t used_blocks_ = 0, waiting_blocks_ = 0;
  absl::Time busy_at_ = absl::InfinitePast();  // last
  std::optional<coordinator::Window> reported_;
  absl::Time reported_at_ = absl::InfinitePast();
  absl::Time looked_at_ = absl::InfinitePast();  // TakeUpdate, late enough to report
  bool pending_ = true;
};

}  // namespace swiftcache::engine::exec
