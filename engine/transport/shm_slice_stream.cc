// SPDX-License-Identifier: Apache-2.0
#include "engine/transport/shm_slice_stream.h"

#include <algorithm>
#include <utility>

#include "glog/logging.h"

namespace swiftcache::engine::transport {

ShmSliceStream::ShmSliceStream(StreamSpec spec, const backend::Fence& after, LeaseLoader& loader)
    : spec_(std::move(spec)), loader_(loader) {
  for (int64_t layer = 0; layer < 2; ++layer) Fetch(layer, after);
}

void ShmSliceStream::Fetch(int64_t layer, const backend::Fence& after) {
  if (layer >= spec_.num_arrivals()) return;
  std::vector<LoadPiece> pieces;
  pieces.reserve(spec_.sources.size());
  for (const StreamSpec::Source& source : spec_.sources) {
    if (layer == 0 && source.first_is_there) continue;
    pieces.push_back({.lease = source.lease,
                      .offset_bytes = spec_.OffsetOf(source, layer),
                      .bytes = spec_.slice_bytes,
                      .to = source.slots[layer % 2]});
  }
  layers_.push_back(pieces.empty() ? nullptr : loader_.Begin(std::move(pieces), after));
}

backend::Fence ShmSliceStream::Arrived(int64_t layer) {
  CHECK_LT(layer, static_cast<int64_t>(layers_.size())) << "the slots of layer " << layer - 2 << " were not released";
  return layers_[layer] == nullptr ? backend::Fence() : layers_[layer]->Arrival();
}

void ShmSliceStream::Release(int64_t layer, const backend::Fence& read) {
  CHECK(layer + 2 >= spec_.num_arrivals() || layer + 2 == static_cast<int64_t>(layers_.size()))
      << "layer " << layer << " is released out of order";
  Fetch(layer + 2, read);
}

// Each layer is asked until it knows, and never again.
std::vector<kv::LeaseId> ShmSliceStream::Lost() const {
  for (; known_layers_ < layers_.size(); ++known_layers_) {
    if (layers_[known_layers_] == nullptr) continue;
    const auto lost = layers_[known_layers_]->Lost();
    if (!lost) break;
    for (const kv::LeaseId lease : *lost) {
      if (std::find(lost_.begin(), lost_.end(), lease) == lost_.end()) lost_.push_back(lease);
    }
  }
  return lost_;
}

std::vector<kv::LeaseId> ShmSliceStream::End() {
  for (const auto& layer : layers_) {
    if (layer != nullptr) (void)layer->Await();
  }
  return Lost();
}

}  // namespace swiftcache::engine::transport
