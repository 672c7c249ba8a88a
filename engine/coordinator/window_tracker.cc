// SPDX-License-Identifier: Apache-2.0
#include "engine/coordinator/window_tracker.h"

#include <algorithm>

namespace swiftcache::engine::coordinator {

void WindowTracker::Note(absl::Time now, int64_t used_blocks, int64_t waiting_blocks, int64_t request_tokens) {
  pending_ = pending_ || used_blocks != used_blocks_ || waiting_blocks != waiting_blocks_;
  used_blocks_ = used_blocks;
  waiting_blocks_ = waiting_blocks;
  if (used_blocks + waiting_blocks == 0 && request_tokens == 0) return;  // idle time opens no slices
  if (slices_.empty() || now - slices_.back().begin >= options_.slice) slices_.push_back({now, 0, 0});
  Slice& slice = slices_.back();
  slice.max_request_tokens = std::max(slice.max_request_tokens, request_tokens);
  slice.peak_blocks = std::max(slice.peak_blocks, used_blocks + waiting_blocks);
}

Window WindowTracker::At(absl::Time now) {
  while (!slices_.empty() && now - slices_.front().begin >= options_.window) slices_.pop_front();
  Window window{.used_blocks = used_blocks_, .waiting_blocks = waiting_blocks_};
  for (const Slice& slice : slices_) {
    window.max_request_tokens = std::max(window.max_request_tokens, slice.max_request_tokens);
    window.peak_blocks = std::max(window.peak_blocks, slice.peak_blocks);
  }
  return window;
}

std::optional<Window> WindowTracker::TakeUpdate(absl::Time now) {
  if (now - reported_at_ < options_.min_interval) return std::nullopt;
  const Window window = At(now);
  pending_ = false;
  if (reported_ == window) return std::nullopt;
  reported_ = window;
  reported_at_ = now;
  return window;
}

absl::Time WindowTracker::NextUpdate() const {
  if (pending_) return reported_at_ + options_.min_interval;
  if (slices_.empty()) return absl::InfiniteFuture();
  return std::max(slices_.front().begin + options_.window, reported_at_ + options_.min_interval);
}

}  // namespace swiftcache::engine::coordinator
