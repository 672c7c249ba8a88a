// SPDX-License-Identifier: Apache-2.0
#include "engine/kv/lru_depth.h"

#include <algorithm>

namespace swiftcache::engine::kv {

LruDepth::LruDepth(int64_t capacity)
    : capacity_(std::max<int64_t>(1, capacity)),
      keys_(2 * capacity_),
      live_(2 * capacity_),
      notes_(2 * capacity_),
      counts_(2 * capacity_ + 1) {}

std::optional<int64_t> LruDepth::Of(uint64_t key) const {
  const auto slot = slots_.find(key);
  if (slot == slots_.end()) return std::nullopt;
  int64_t used_before = 0;
  for (int32_t i = slot->second; i > 0; i -= i & -i) used_before += counts_[i];
  return size() - used_before;
}

void LruDepth::Use(uint64_t key) {
  if (next_ == static_cast<int32_t>(keys_.size())) Renumber();
  if (const auto known = slots_.find(key); known != slots_.end()) Erase(known->second);
  slots_[key] = next_;
  keys_[next_] = key;
  live_[next_] = true;
  notes_[next_] = 0;
  Count(next_++, 1);
  if (size() <= capacity_) return;
  while (!live_[oldest_]) ++oldest_;
  slots_.erase(keys_[oldest_]);
  Erase(oldest_);
}

void LruDepth::SetNote(uint64_t key, uint8_t note) {
  if (const auto slot = slots_.find(key); slot != slots_.end()) notes_[slot->second] = note;
}

uint8_t LruDepth::NoteOf(uint64_t key) const {
  const auto slot = slots_.find(key);
  return slot == slots_.end() ? 0 : notes_[slot->second];
}

void LruDepth::Count(int32_t slot, int32_t change) {
  for (int32_t i = slot + 1; i < static_cast<int32_t>(counts_.size()); i += i & -i) counts_[i] += change;
}

void LruDepth::Erase(int32_t slot) {
  live_[slot] = false;
  Count(slot, -1);
}

// The live ones move together, to the front.
void LruDepth::Renumber() {
  next_ = oldest_ = 0;
  for (size_t slot = 0; slot < keys_.size(); ++slot) {
    if (!live_[slot]) continue;
    live_[slot] = false;
    keys_[next_] = keys_[slot];
    live_[next_] = true;
    notes_[next_] = notes_[slot];
    slots_[keys_[next_]] = next_;
    ++next_;
  }
  for (int32_t i = 1; i < static_cast<int32_t>(counts_.size()); ++i) {
    counts_[i] = std::max(0, std::min(i, next_) - (i - (i & -i)));  // of the slots from i - (i & -i) to i - 1
  }
}

}  // namespace swiftcache::engine::kv
