// SPDX-License-Identifier: Apache-2.0
#include "engine/exec/window_tracker.h"

#include <algorithm>

namespace swiftcache::engine::exec {

void WindowTracker::Note(absl::Time now, int64_t used_blocks, int64_t waiting_blocks, int64_t request_tokens) {
  pending_ = pending_ || used_blocks != used_blocks_ || waiting_blocks != waiting_blocks_;
  used_blocks_ = used_blocks;
  waiting_blocks_ = waiting_blocks;
  if (used_blocks + waiting_blocks > 0) busy_at_ = now;
  if (used_blocks + waiting_blocks == 0 && request_tokens == 0) return;  // idle time opens no slices
  const absl::Duration slice = std::min(kLongestSlice, options_.window / kLeastSlices);
  if (slices_.empty() || now - slices_.back().begin >= slice) slices_.push_back({now, 0, 0});
  Slice& latest = slices_.back();
  latest.max_request_tokens = std::max(latest.max_request_tokens, request_tokens);
  latest.peak_blocks = std::max(latest.peak_blocks, used_blocks + waiting_blocks);
}

void WindowTracker::NoteReuse(absl::Time now, const kv::Reuse& reuse) {
  if (reuse.looked_up == 0) return;
  pending_ = true;
  if (reuse_.empty() || now - reuse_.back().first >= options_.window) reuse_.emplace_back(now, kv::Reuse());
  reuse_.back().second += reuse;
}

coordinator::Window WindowTracker::At(absl::Time now) {
  while (!reuse_.empty() && now - reuse_.front().first >= (kReuseWindows + 1) * options_.window) reuse_.pop_front();
  while (!slices_.empty() && now - slices_.front().begin >= options_.window) slices_.pop_front();
  coordinator::Window window{.used_blocks = used_blocks_, .waiting_blocks = waiting_blocks_};
  for (const Slice& slice : slices_) {
    window.max_request_tokens = std::max(window.max_request_tokens, slice.max_request_tokens);
    window.peak_blocks = std::max(window.peak_blocks, slice.peak_blocks);
  }
  kv::Reuse reuse;
  for (const auto& [begin, slice] : reuse_) reuse += slice;
  window.cache_blocks = reuse.CacheBlocks(options_.num_blocks);
  if (reuse.Thrashes() && now >= PauseBegins()) window.cache_blocks /= 2;
  return window;
}

std::optional<coordinator::Window> WindowTracker::TakeUpdate(absl::Time now) {
  if (now - reported_at_ < options_.min_interval) return std::nullopt;
  const coordinator::Window window = At(now);
  looked_at_ = now;
  pending_ = false;
  if (reported_ == window) return std::nullopt;
  reported_ = window;
  reported_at_ = now;
  return window;
}

std::optional<coordinator::Window> WindowTracker::Follow(kv::KvCache& cache, int64_t waiting_blocks,
                                                         int64_t request_tokens, absl::Time now) {
  Note(now, cache.local().used, waiting_blocks, request_tokens);
  NoteReuse(now, cache.TakeReuse());
  std::optional<coordinator::Window> window = TakeUpdate(now);
  if (window) cache.KeepCached(window->cache_blocks);
  return window;
}

absl::Time WindowTracker::NextUpdate() const {
  if (pending_) return reported_at_ + options_.min_interval;
  absl::Time next = absl::InfiniteFuture();
  if (!slices_.empty()) next = slices_.front().begin + options_.window;
  if (!reuse_.empty()) {
    next = std::min(next, reuse_.front().first + (kReuseWindows + 1) * options_.window);
    if (PauseBegins() > looked_at_) next = std::min(next, PauseBegins());
  }
  return std::max(next, reported_at_ + options_.min_interval);
}

}  // namespace swiftcache::engine::exec
