// SPDX-License-Identifier: Apache-2.0
#include "engine/kv/layer_stream.h"

#include <algorithm>
#include <utility>

#include "glog/logging.h"

namespace swiftcache::engine::kv {

LayerStreamSizes DivideSlices(int64_t own_slices, int64_t leased_blocks, int64_t slots_per_block, int64_t num_layers) {
  const int64_t lsc_slots = std::min(slots_per_block * leased_blocks, own_slices);      // eq. 4
  return {.lsc_slots = lsc_slots, .rc_blocks = (own_slices - lsc_slots) / num_layers};  // eq. 5
}

int64_t StreamBlocksFor(int64_t own_blocks, int64_t leased_blocks, int64_t num_layers) {
  const int64_t half = own_blocks / 2;
  return half - DivideSlices(half * num_layers, leased_blocks, kStreamBuffers, num_layers).rc_blocks;
}

LayerSlots::LayerSlots(std::span<const int32_t> places, int64_t num_layers)
    : places_(places.begin(), places.end()), num_layers_(num_layers) {
  CHECK_GT(num_layers, 0);
}

void LayerSlots::Begin() {
  if (std::exchange(names_any_, false)) ++step_;
  next_idle_ = 0;
  end_ = capacity();
}

std::optional<LayerSlots::Stream> LayerSlots::Assign(Filling filling) {
  auto known = numbers_.find(filling);
  if (known == numbers_.end()) {
    const std::optional<int64_t> taken = Take();
    if (!taken) return std::nullopt;
    streams_[*taken] = {.filling = filling};
    known = numbers_.emplace(filling, *taken).first;
  }
  names_any_ = true;
  OfBlock& stream = streams_[known->second];
  const bool is_new = std::exchange(stream.step, step_) != step_;
  return Stream{known->second, is_new, stream.first_is_there};
}

// Of no block; else of one that neither this step nor the one before has named; else, from the end, of one that this step
// has not named so far. That block may be named a moment later, and takes from another then. From the beginning, which is
// the order in which blocks are mostly named, each would take from the next one.
std::optional<int64_t> LayerSlots::Take() {
  if (const auto known = static_cast<int64_t>(streams_.size()); known < capacity()) {
    streams_.emplace_back();
    return known;
  }
  while (next_idle_ < capacity() && streams_[next_idle_].step >= step_ - 1) ++next_idle_;
  while (end_ > 0 && streams_[end_ - 1].step == step_) --end_;
  if (end_ == 0) return std::nullopt;
  const int64_t taken = next_idle_ < capacity() ? next_idle_++ : --end_;
  numbers_.erase(streams_[taken].filling);
  return taken;
}

void LayerSlots::KeepFirst(int64_t stream) {
  OfBlock& kept = streams_[stream];
  kept.buffer_of_first = (kept.buffer_of_first + num_layers_) % kStreamBuffers;
  kept.first_is_there = true;
}

// Buffers lie one behind the other, so that neighbouring streams are neighbours in memory.
LayerSlots::Slot LayerSlots::At(int64_t stream, int64_t layer) const {
  const int64_t slot = (streams_[stream].buffer_of_first + layer) % kStreamBuffers * capacity() + stream;
  return {places_[slot / num_layers_], slot % num_layers_};
}

}  // namespace swiftcache::engine::kv
