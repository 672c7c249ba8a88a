// SPDX-License-Identifier: Apache-2.0
// Datagrams of a lease's channel: each is one message that is written back to the same bytes, or one clear error; a
// store or grant that passes its check stays inside what it names.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <type_traits>
#include <vector>

#include "engine/transport/shm_message.h"

namespace {

using namespace swiftcache::engine::transport;  // NOLINT: a fuzzer of that one header

void Require(bool condition) {
  if (!condition) std::abort();
}

void CheckStore(const ShmStore& store) {
  for (const int64_t lease_bytes : {int64_t{4096}, int64_t{1} << 40, INT64_MAX}) {
    if (!CheckShmStore(store, lease_bytes, kMaxStagingBytes).ok()) continue;
    Require(store.bytes > 0 && store.offset >= 0 && store.staging_offset >= 0);
    Require(static_cast<__int128>(store.offset) + store.bytes <= lease_bytes);
    Require(static_cast<__int128>(store.staging_offset) + store.bytes <= kMaxStagingBytes);
  }
}

void CheckGrant(const ShmGrantMessage& message) {
  Require(message.grant.word >= 0 && message.pieces.size() == static_cast<size_t>(message.grant.num_pieces));
  if (!CheckShmGrant(message, message.grant.bytes, 4096).ok()) return;
  __int128 sum = 0;
  for (const ShmPiece& piece : message.pieces) {
    Require(piece.offset >= 0 && piece.offset % 4096 == 0 && piece.bytes > 0 && piece.bytes % 4096 == 0);
    Require(static_cast<__int128>(piece.offset) + piece.bytes <= INT64_MAX);
    sum += piece.bytes;
  }
  Require(sum == message.grant.bytes);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::span<const std::byte> bytes = std::as_bytes(std::span(data, size));
  const auto message = ParseShmMessage(bytes);
  if (!message.ok()) {
    Require(message.status().code() == absl::StatusCode::kInvalidArgument && !message.status().message().empty());
    return 0;
  }
  Require(static_cast<int64_t>(size) <= kMaxShmMessageBytes);
  const std::vector<std::byte> again = std::visit(
      [](const auto& body) {
        if constexpr (std::is_same_v<std::decay_t<decltype(body)>, ShmGrantMessage>) {
          return EncodeShmMessage(body.grant, body.pieces);
        } else {
          return EncodeShmMessage(body);
        }
      },
      *message);
  Require(again.size() == size && std::memcmp(again.data(), data, size) == 0);
  if (const auto* store = std::get_if<ShmStore>(&*message)) CheckStore(*store);
  if (const auto* grant = std::get_if<ShmGrantMessage>(&*message)) CheckGrant(*grant);
  return 0;
}
