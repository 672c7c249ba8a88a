// SPDX-License-Identifier: Apache-2.0
#include "engine/exec/layer_streamer.h"

#include <algorithm>
#include <utility>

#include "glog/logging.h"

namespace swiftcache::engine::exec {

struct LayerStreamer::Waited final : backend::FenceState {
  Waited(LayerStreamer* streamer, backend::Fence arrival) : streamer(*streamer), arrival(std::move(arrival)) {}
  bool Passed() const override { return arrival.Passed(); }
  void Wait() const override {
    const absl::Time begin = streamer.clock_->Now();
    arrival.Wait();
    streamer.NoteStall(begin);
  }
  const backend::FenceState* stands_for() const override { return arrival.state(); }
  LayerStreamer& streamer;
  const backend::Fence arrival;
};

void LayerStreamer::Begin(int64_t first_layer) {
  CHECK_LT(first_layer, layout_.num_layers);
  slots_->Begin();
  spec_ = {.num_layers = layout_.num_layers - first_layer,
           .slice_bytes = layout_.slice_bytes(),
           .first_again = first_layer == 0 && layout_.num_layers > 1};
  streams_.clear();
}

std::optional<LayerStreamer::Slots> LayerStreamer::Add(kv::Filling filling, kv::LeaseId lease, int64_t offset_bytes) {
  const std::optional<kv::LayerSlots::Stream> stream = slots_->Assign(filling);
  if (!stream) return std::nullopt;
  const Slots slots = {AddressOf(stream->number, 0), AddressOf(stream->number, 1)};
  if (stream->is_new) {
    const int64_t first = first_layer();
    spec_.sources.push_back({.lease = lease,
                             .offset_bytes = offset_bytes + first * layout_.slice_bytes(),
                             .slots = {AddressOf(stream->number, first), AddressOf(stream->number, first + 1)},
                             .first_is_there = first == 0 && stream->first_is_there});
    streams_.push_back(stream->number);
  }
  return slots;
}

backend::DeviceAddress LayerStreamer::AddressOf(int64_t stream, int64_t layer) const {
  const kv::LayerSlots::Slot slot = slots_->At(stream, layer);
  return arena_ + slot.place * layout_.block_bytes() + slot.slice * layout_.slice_bytes();
}

void LayerStreamer::NoteStall(absl::Time begin) {
  stall_ns_.fetch_add(absl::ToInt64Nanoseconds(clock_->Now() - begin), std::memory_order_relaxed);
}

void LayerStreamer::Start(const backend::Fence& after) {
  num_released_ = 0;
  if (!empty()) stream_ = transport_->BeginStream(spec_, after);
}

backend::Fence LayerStreamer::Arrived(int64_t layer) {
  if (stream_ == nullptr) return {};
  return backend::Fence(std::make_shared<const Waited>(this, stream_->Arrived(layer - first_layer())));
}

void LayerStreamer::Release(int64_t layer, const backend::Fence& read) {
  if (stream_ == nullptr) return;
  stream_->Release(layer - first_layer(), read);
  ++num_released_;
}

std::vector<kv::LeaseId> LayerStreamer::Lost() const {
  return stream_ == nullptr ? std::vector<kv::LeaseId>() : stream_->Lost();
}

std::vector<kv::LeaseId> LayerStreamer::End() {
  if (stream_ == nullptr) return {};
  const absl::Time begin = clock_->Now();
  std::vector<kv::LeaseId> lost = stream_->End();
  NoteStall(begin);
  stream_.reset();
  const bool came_again = spec_.first_again && num_released_ == spec_.num_layers;
  for (size_t i = 0; i < streams_.size(); ++i) {
    if (came_again && std::find(lost.begin(), lost.end(), spec_.sources[i].lease) == lost.end()) {
      slots_->KeepFirst(streams_[i]);
    } else {
      slots_->ForgetFirst(streams_[i]);
    }
  }
  return lost;
}

}  // namespace swiftcache::engine::exec
