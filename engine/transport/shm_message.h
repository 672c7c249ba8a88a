// SPDX-License-Identifier: Apache-2.0
// What donor and borrower say to each other over a lease's channel (wire_message.h). A lease's life on the wire:
//
//   borrower                                      donor
//   HELLO + staging memory                  ->
//                                           <-    GRANT + generation page + chunks, or REFUSE and the end
//   STORE ...  RENEW ...                    ->
//                                           <-    STORED ...  RENEWED ...  REVOKE
//   RELEASE                                 ->    (or either end closes)
//
// Every message starts with a WireHeader; the body of its kind follows, and nothing else:
//
//   header   0 u16 kind      2 u16 version      4 u32 bytes of the whole message
//   HELLO    8 i64 lease    16 i64 staging bytes    24 char[128] capability   152 char[128] borrower's instance
//   GRANT    8 u64 epoch    16 i64 bytes of the lease    24 i32 generation word   28 i32 pieces   32 pieces x ShmPiece
//   REFUSE   8 u32 reason
//   REVOKE   8 i64 nanoseconds left
//   STORE    8 i64 ticket   16 i64 offset in the lease   24 i64 bytes   32 i64 offset in the staging memory
//   STORED   8 i64 ticket
//   RENEW    8 i64 heat, not negative
//   RENEWED, RELEASE: nothing
//
// shm_staging.h has the layout of the staging memory. A GRANT carries 1 + pieces
// descriptors: the generation page, and the memory of each piece; the lease is the pieces, one after the other. A HELLO
// carries one descriptor, all others none. The tickets of a channel's STOREs rise.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/transport/wire_message.h"

namespace swiftcache::engine::transport {

inline constexpr uint16_t kShmVersion = 2;
inline constexpr int64_t kMaxShmPieces = 240;           // as many as an arena has chunks
inline constexpr int64_t kMaxStagingBytes = 1ll << 30;  // of one lease
inline constexpr size_t kMaxUnanswered = 64;            // stores of one lease on their way

enum class ShmKind : uint16_t { kHello = 1, kGrant, kRefuse, kRenew, kRenewed, kRevoke, kRelease, kStore, kStored };

struct ShmHello {
  static constexpr ShmKind kKind = ShmKind::kHello;
  int64_t lease;
  int64_t staging_bytes;
  WireText capability;
  WireText instance;
};
static_assert(sizeof(ShmHello) == 272 && offsetof(ShmHello, staging_bytes) == 8 &&
              offsetof(ShmHello, capability) == 16 && offsetof(ShmHello, instance) == 144);

struct ShmPiece {
  int64_t offset;  // in its memory
  int64_t bytes;
};
static_assert(sizeof(ShmPiece) == 16);

struct ShmGrant {
  static constexpr ShmKind kKind = ShmKind::kGrant;
  uint64_t epoch;
  int64_t bytes;
  int32_t word;  // of the generation page
  int32_t num_pieces;
};
static_assert(sizeof(ShmGrant) == 24 && offsetof(ShmGrant, word) == 16 && offsetof(ShmGrant, num_pieces) == 20);

struct ShmRefuse {
  static constexpr ShmKind kKind = ShmKind::kRefuse;
  LeaseRefusal reason;
};
static_assert(sizeof(ShmRefuse) == 4);

struct ShmRevoke {
  static constexpr ShmKind kKind = ShmKind::kRevoke;
  int64_t time_left_ns;
};
static_assert(sizeof(ShmRevoke) == 8);

struct ShmStore {
  static constexpr ShmKind kKind = ShmKind::kStore;
  int64_t ticket;
  int64_t offset;  // in the lease
  int64_t bytes;
  int64_t staging_offset;
};
static_assert(sizeof(ShmStore) == 32 && offsetof(ShmStore, staging_offset) == 24);

struct ShmStored {
  static constexpr ShmKind kKind = ShmKind::kStored;
  int64_t ticket;
};
static_assert(sizeof(ShmStored) == 8);

struct ShmRenew {
  static constexpr ShmKind kKind = ShmKind::kRenew;
  int64_t heat;
};
static_assert(sizeof(ShmRenew) == 8);

struct ShmRenewed {
  static constexpr ShmKind kKind = ShmKind::kRenewed;
};
struct ShmRelease {
  static constexpr ShmKind kKind = ShmKind::kRelease;
};

/// A GRANT as it is read.
struct ShmGrantMessage {
  ShmGrant grant;
  std::vector<ShmPiece> pieces;
};

using ShmMessage = std::variant<ShmHello, ShmGrantMessage, ShmRefuse, ShmRenew, ShmRenewed, ShmRevoke, ShmRelease,
                                ShmStore, ShmStored>;

inline constexpr int64_t kMaxShmMessageBytes = sizeof(WireHeader) + sizeof(ShmGrant) + kMaxShmPieces * sizeof(ShmPiece);

/// Foreign bytes to a message. INVALID_ARGUMENT, with what is wrong: a length, kind or version that is none, a number
/// outside what its field can mean by itself, text that is not ended by zeros.
absl::StatusOr<ShmMessage> ParseShmMessage(std::span<const std::byte> bytes);

/// INVALID_ARGUMENT: the store leaves the lease or the staging memory. REQUIRES: as parsed.
absl::Status CheckShmStore(const ShmStore& store, int64_t lease_bytes, int64_t staging_bytes);
/// INVALID_ARGUMENT: the pieces are not whole pages of `page_bytes`, or do not make up the `lease_bytes` that were
/// wanted.
absl::Status CheckShmGrant(const ShmGrantMessage& message, int64_t lease_bytes, int64_t page_bytes);

/// A message as it goes over the wire.
template <typename Body>
std::vector<std::byte> EncodeShmMessage(const Body& body, std::span<const ShmPiece> pieces = {}) {
  WireBytes bytes;
  if constexpr (!std::is_empty_v<Body>) bytes = std::as_bytes(std::span(&body, 1));
  return EncodeWire(static_cast<uint16_t>(Body::kKind), kShmVersion, {bytes, std::as_bytes(pieces)});
}

}  // namespace swiftcache::engine::transport
