// SPDX-License-Identifier: Apache-2.0
#include "engine/transport/nccl/nccl_batch.h"

namespace swiftcache::engine::transport::nccl {

std::vector<NcclGroup> MakeNcclGroups(const NcclBatchMessage& message,
                                      const std::function<uint64_t(size_t piece, int64_t arrival)>& address) {
  const int64_t most_bytes = message.head.kind == NcclKind::kStore ? kMaxNcclStoreBytes : kNcclGroupBytes;
  std::vector<NcclGroup> groups;
  for (int64_t arrival = 0; arrival < message.head.arrivals(); ++arrival) {
    groups.emplace_back();
    int64_t bytes = 0;
    for (size_t i = 0; i < message.pieces.size(); ++i) {
      const NcclPiece& piece = message.pieces[i];
      if (arrival == 0 && piece.first_is_there != 0) continue;
      if (message.head.kind != NcclKind::kStream && bytes > 0 && bytes + piece.bytes > most_bytes) {
        groups.emplace_back();
        bytes = 0;
      }
      bytes += piece.bytes;
      groups.back().pieces.push_back({.run = {address(i, arrival), piece.bytes}, .lease = piece.lease});
    }
  }
  return groups;
}

}  // namespace swiftcache::engine::transport::nccl
