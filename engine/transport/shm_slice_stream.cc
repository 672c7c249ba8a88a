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

std::vector<kv::LeaseId> ShmSliceStream::Lost() const {
  std::vector<kv::LeaseId> lost;
  for (const ShmLoader::JobPtr& layer : layers_) {
    for (const kv::LeaseId lease : loader_.LostOf(*layer)) {
      if (std::find(lost.begin(), lost.end(), lease) == lost.end()) lost.push_back(lease);
    }
  }
  return lost;
}

std::vector<kv::LeaseId> ShmSliceStream::End() {
  for (const ShmLoader::JobPtr& layer : layers_) loader_.WaitFor(*layer);
  std::vector<kv::LeaseId> lost = Lost();
  layers_.clear();
  return lost;
}

}  // namespace swiftcache::engine::transport
