// SPDX-License-Identifier: Apache-2.0
// A step's streaming where leases are mapped: a load a layer, two layers ahead at most, and at the end the first layer
// of the next step.
//
//   return std::make_unique<ShmSliceStream>(std::move(spec), after, loader);
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/transport/peer_memory.h"
#include "engine/transport/transport.h"

namespace swiftcache::engine::transport {

/// Thread-safety, errors: SliceStream's. Ownership: borrows the loader, which outlives it and its fences.
class ShmSliceStream final : public SliceStream {
 public:
  ShmSliceStream(StreamSpec spec, const backend::Fence& after, LeaseLoader& loader);
  ~ShmSliceStream() override { (void)End(); }

  backend::Fence Arrived(int64_t layer) override;
  void Release(int64_t layer, const backend::Fence& read) override;
  std::vector<kv::LeaseId> Lost() const override;
  std::vector<kv::LeaseId> End() override;

 private:
  void Fetch(int64_t layer, const backend::Fence& after);

  const StreamSpec spec_;
  LeaseLoader& loader_;
  // On their way, or there; null: it was there before.
  std::vector<std::shared_ptr<const PendingLoad>> layers_;
  // What was lost of the first so many layers.
  mutable size_t known_layers_ = 0;
  mutable std::vector<kv::LeaseId> lost_;
};

}  // namespace swiftcache::engine::transport
