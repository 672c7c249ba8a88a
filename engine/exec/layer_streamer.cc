// SPDX-License-Identifier: Apache-2.0
#include "engine/exec/layer_streamer.h"

#include <utility>

namespace swiftcache::engine::exec {

struct LayerStreamer::Waited final : backend::FenceState {
  Waited(LayerStreamer* streamer, backend::Fence arrival) : streamer(*streamer), arrival(std::move(arrival)) {}
  bool Passed() const override { return arrival.Passed(); }
  void Wait() const override {
    const absl::Time begin = streamer.clock_->Now();
    arrival.Wait();
    streamer.stall_ns_.fetch_add(absl::ToInt64Nanoseconds(streamer.clock_->Now() - begin), std::memory_order_relaxed);
  }
  const backend::FenceState* stands_for() const override { return arrival.state(); }
  LayerStreamer& streamer;
  const backend::Fence arrival;
};

void LayerStreamer::Begin() {
  slots_->Clear();
  spec_ = {.num_layers = layout_.num_layers, .slice_bytes = layout_.slice_bytes()};
}

std::optional<LayerStreamer::Slots> LayerStreamer::Add(kv::BlockId block, kv::LeaseId lease, int64_t offset_bytes) {
  const std::optional<int64_t> stream = slots_->Assign(block);
  if (!stream) return std::nullopt;
  if (*stream == static_cast<int64_t>(spec_.sources.size())) {
    transport::StreamSpec::Source source{.lease = lease, .offset_bytes = offset_bytes};
    for (int64_t buffer = 0; buffer < std::min(kv::kStreamBuffers, layout_.num_layers); ++buffer) {
      const kv::LayerSlots::Slot slot = slots_->At(*stream, buffer);
      source.slots[buffer] = arena_ + slot.place * layout_.block_bytes() + slot.slice * layout_.slice_bytes();
    }
    spec_.sources.push_back(source);
  }
  const transport::StreamSpec::Source& source = spec_.sources[*stream];
  return Slots{source.slots[0], source.slots[1]};
}

void LayerStreamer::Start(const backend::Fence& after) {
  if (!empty()) stream_ = transport_->BeginStream(spec_, after);
}

backend::Fence LayerStreamer::Arrived(int64_t layer) {
  if (stream_ == nullptr) return {};
  return backend::Fence(std::make_shared<const Waited>(this, stream_->Arrived(layer)));
}

void LayerStreamer::Release(int64_t layer, const backend::Fence& read) {
  if (stream_ != nullptr) stream_->Release(layer, read);
}

std::vector<kv::LeaseId> LayerStreamer::Lost() const {
  return stream_ == nullptr ? std::vector<kv::LeaseId>() : stream_->Lost();
}

std::vector<kv::LeaseId> LayerStreamer::End() {
  if (stream_ == nullptr) return {};
  std::vector<kv::LeaseId> lost = stream_->End();
  stream_.reset();
  return lost;
}

}  // namespace swiftcache::engine::exec
