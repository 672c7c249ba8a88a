// SPDX-License-Identifier: Apache-2.0
// Datagrams of a lease's channel where KV goes by NCCL: each is one message that is written back to the same bytes, or
// one clear error; a batch that passes its check stays inside the leases it names, with all its layers.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <type_traits>
#include <vector>

#include "engine/transport/nccl/nccl_message.h"

namespace {

using namespace swiftcache::engine::transport::nccl;  // NOLINT: a fuzzer of that one header

void Require(bool condition) {
  if (!condition) std::abort();
}

void CheckPiece(const NcclBatchHead& head, const NcclPiece& piece, int64_t lease_bytes) {
  const __int128 last_layer = piece.offset + static_cast<__int128>(head.layers - 1) * head.layer_stride;
  Require(piece.offset >= 0 && piece.bytes > 0 && last_layer + piece.bytes <= lease_bytes);
}

void CheckBatch(const NcclBatchMessage& message) {
  const NcclBatchHead& head = message.head;
  Require(message.leases.size() == head.num_leases && message.pieces.size() == head.num_pieces);
  Require(head.layer_stride >= 0 && head.arrivals() >= 1 && head.arrivals() * head.num_pieces <= kMaxNcclSlices);
  const int64_t most_bytes = head.kind == NcclKind::kStore ? kMaxNcclStoreBytes : kMaxNcclPieceBytes;
  for (const NcclPiece& piece : message.pieces) {
    Require(piece.lease < head.num_leases && piece.bytes <= most_bytes && piece.bytes_of_all(head) >= 0);
  }
  for (const int64_t lease_bytes : {int64_t{0}, int64_t{4096}, int64_t{1} << 40, INT64_MAX}) {
    const std::vector<int64_t> of_each(head.num_leases, lease_bytes);
    if (lease_bytes == 0 || !CheckNcclPieces(message, of_each).ok()) continue;
    for (const NcclPiece& piece : message.pieces) CheckPiece(head, piece, lease_bytes);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto message = ParseNcclMessage(std::as_bytes(std::span(data, size)));
  if (!message.ok()) {
    Require(message.status().code() == absl::StatusCode::kInvalidArgument && !message.status().message().empty());
    return 0;
  }
  Require(static_cast<int64_t>(size) <= kMaxNcclMessageBytes);
  const std::vector<std::byte> again = std::visit(
      [](const auto& body) {
        using Body = std::decay_t<decltype(body)>;
        if constexpr (std::is_same_v<Body, NcclBatchMessage>) {
          return EncodeNcclBatch(body);
        } else if constexpr (std::is_same_v<Body, NcclAnswer>) {
          return EncodeNcclAnswer(body);
        } else {
          return EncodeNcclMessage(body);
        }
      },
      *message);
  Require(again.size() == size && std::memcmp(again.data(), data, size) == 0);
  if (const auto* batch = std::get_if<NcclBatchMessage>(&*message)) CheckBatch(*batch);
  return 0;
}
