// SPDX-License-Identifier: Apache-2.0
#include "engine/exec/layer_streamer.h"

#include <utility>

namespace swiftcache::engine::exec {

void LayerStreamer::Begin() {
  slots_->Clear();
  sources_.clear();
}

std::optional<int64_t> LayerStreamer::Add(kv::BlockId block, kv::LeaseId lease, int64_t offset_bytes) {
  const std::optional<int64_t> stream = slots_->Assign(block);
  if (stream && *stream == static_cast<int64_t>(sources_.size())) sources_.push_back({lease, offset_bytes});
  return stream;
}

void LayerStreamer::Prefetch(int64_t layer) {
  if (empty() || layer >= layout_.num_layers) return;
  std::vector<transport::LoadPiece> pieces;
  pieces.reserve(sources_.size());
  for (size_t i = 0; i < sources_.size(); ++i) {
    pieces.push_back({.lease = sources_[i].lease,
                      .offset_bytes = sources_[i].offset_bytes + layer * layout_.slice_bytes(),
                      .bytes = layout_.slice_bytes(),
                      .to = Slice(static_cast<int64_t>(i), layer)});
  }
  under_way_ = transport_->Load(std::move(pieces));
}

std::vector<kv::LeaseId> LayerStreamer::Arrive(int64_t layer) {
  if (empty()) return {};
  const absl::Time begin = clock_->Now();
  std::vector<kv::LeaseId> lost = transport_->Await(*std::exchange(under_way_, std::nullopt));
  stall_ += clock_->Now() - begin;
  return lost;
}

void LayerStreamer::End() {
  if (under_way_) (void)transport_->Await(*std::exchange(under_way_, std::nullopt));
}

std::byte* LayerStreamer::Slice(int64_t stream, int64_t layer) const {
  const kv::LayerSlots::Slot slot = slots_->At(stream, layer);
  return arena_->Address(slot.place) + slot.slice * layout_.slice_bytes();
}

}  // namespace swiftcache::engine::exec
