// SPDX-License-Identifier: Apache-2.0
#include "engine/transport/shm_slice_stream.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "glog/logging.h"

namespace swiftcache::engine::transport {
namespace {

class LayerArrival final : public backend::FenceState {
 public:
  LayerArrival(const ShmLoader& loader, ShmLoader::JobPtr job) : loader_(loader), job_(std::move(job)) {}
  bool Passed() const override { return loader_.HasArrived(*job_); }
  void Wait() const override { loader_.WaitFor(*job_); }

 private:
  const ShmLoader& loader_;
  const ShmLoader::JobPtr job_;
};

}  // namespace

ShmSliceStream::ShmSliceStream(StreamSpec spec, const backend::Fence& after, ShmLoader& loader)
    : spec_(std::move(spec)), loader_(loader) {
  for (int64_t layer = 0; layer < 2; ++layer) Fetch(layer, after);
}

void ShmSliceStream::Fetch(int64_t layer, const backend::Fence& after) {
  if (layer >= spec_.num_layers) return;
  std::vector<LoadPiece> pieces;
  pieces.reserve(spec_.sources.size());
  for (const StreamSpec::Source& source : spec_.sources) {
    pieces.push_back({.lease = source.lease,
                      .offset_bytes = source.offset_bytes + layer * spec_.slice_bytes,
                      .bytes = spec_.slice_bytes,
                      .to = source.slots[layer % 2]});
  }
  layers_.push_back(loader_.Begin(std::move(pieces), after));
}

backend::Fence ShmSliceStream::Arrived(int64_t layer) {
  CHECK_LT(layer, static_cast<int64_t>(layers_.size())) << "the slots of layer " << layer - 2 << " were not released";
  return backend::Fence(std::make_shared<const LayerArrival>(loader_, layers_[layer]));
}

void ShmSliceStream::Release(int64_t layer, const backend::Fence& read) {
  CHECK(layer + 2 >= spec_.num_layers || layer + 2 == static_cast<int64_t>(layers_.size()))
      << "layer " << layer << " is released out of order";
  Fetch(layer + 2, read);
}

// Each layer is asked until it knows, and never again.
std::vector<kv::LeaseId> ShmSliceStream::Lost() const {
  for (; known_layers_ < layers_.size(); ++known_layers_) {
    const auto lost = loader_.LostOf(*layers_[known_layers_]);
    if (!lost) break;
    for (const kv::LeaseId lease : *lost) {
      if (std::find(lost_.begin(), lost_.end(), lease) == lost_.end()) lost_.push_back(lease);
    }
  }
  return lost_;
}

std::vector<kv::LeaseId> ShmSliceStream::End() {
  for (const ShmLoader::JobPtr& layer : layers_) loader_.WaitFor(*layer);
  return Lost();
}

}  // namespace swiftcache::engine::transport
