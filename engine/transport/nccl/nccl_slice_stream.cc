// SPDX-License-Identifier: Apache-2.0
#include "engine/transport/nccl/nccl_slice_stream.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "engine/transport/nccl/nccl_borrower_channel.h"
#include "glog/logging.h"

namespace swiftcache::engine::transport::nccl {
namespace {

class LayerArrival final : public backend::FenceState {
 public:
  LayerArrival(std::vector<NcclTransferPtr> transfers, int64_t layer)
      : transfers_(std::move(transfers)), layer_(layer) {}
  bool Passed() const override {
    return std::all_of(transfers_.begin(), transfers_.end(), [&](const NcclTransferPtr& transfer) {
      return transfer->channel->link().HasPassed(*transfer->batch, layer_);
    });
  }
  void Wait() const override {
    for (const NcclTransferPtr& transfer : transfers_) transfer->channel->link().AwaitPassed(*transfer->batch, layer_);
  }
  // A device waits by itself for what one donor sends, once it is in the stream of their link. Of several donors there is
  // no single event: the host waits, as it does until then.
  const backend::FenceState* stands_for() const override {
    if (transfers_.size() != 1) return nullptr;
    return transfers_[0]->channel->link().EventOf(*transfers_[0]->batch, layer_);
  }

 private:
  const std::vector<NcclTransferPtr> transfers_;
  const int64_t layer_;
};

NcclMoves MovesOf(const StreamSpec& spec, const backend::Fence& after) {
  NcclMoves moves = {.kind = NcclKind::kStream,
                     .layers = spec.num_layers,
                     .layer_stride = spec.slice_bytes,
                     .first_again = spec.first_again,
                     .after = after};
  for (const StreamSpec::Source& source : spec.sources) {
    moves.moves.push_back({.lease = source.lease,
                           .offset_bytes = source.offset_bytes,
                           .bytes = spec.slice_bytes,
                           .here = {source.slots[0], source.slots[1]},
                           .first_is_there = source.first_is_there});
  }
  return moves;
}

}  // namespace

NcclSliceStream::NcclSliceStream(const StreamSpec& spec, const backend::Fence& after, NcclBorrower& borrower)
    : num_arrivals_(spec.num_arrivals()),
      first_is_there_(spec.first_is_there()),
      borrower_(borrower),
      begun_(borrower.Begin(MovesOf(spec, after))) {}

NcclSliceStream::~NcclSliceStream() { (void)End(); }

backend::Fence NcclSliceStream::Arrived(int64_t layer) {
  CHECK_LT(layer, num_released_ + 2) << "the slots of layer " << layer - 2 << " were not released";
  if (layer == 0 && first_is_there_) return {};
  return backend::Fence(std::make_shared<const LayerArrival>(begun_.transfers, layer));
}

void NcclSliceStream::Release(int64_t layer, const backend::Fence& read) {
  CHECK_EQ(layer, num_released_) << "a layer is released out of order";
  ++num_released_;
  if (layer + 2 >= num_arrivals_) return;
  for (const NcclTransferPtr& transfer : begun_.transfers) {
    transfer->channel->link().SetReady(*transfer->batch, layer + 2, read);
  }
}

std::vector<kv::LeaseId> NcclSliceStream::Lost() const { return borrower_.LostOf(begun_); }

std::vector<kv::LeaseId> NcclSliceStream::End() {
  for (const NcclTransferPtr& transfer : begun_.transfers) transfer->channel->link().SetAllReady(*transfer->batch);
  return borrower_.AwaitLost(begun_);
}

}  // namespace swiftcache::engine::transport::nccl
