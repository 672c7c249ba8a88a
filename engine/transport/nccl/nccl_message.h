// SPDX-License-Identifier: Apache-2.0
// What donor and borrower say to each other where KV travels by NCCL: one channel a pair of engines, one message a
// datagram of a Unix SEQPACKET socket, in the byte order of the machine that both are on. KV itself never comes here.
//
//   borrower                                       donor
//   OPEN (a lease)                          ->
//                                           <-     GRANTED, or REFUSED
//   JOIN (a communicator, its unique id)    ->
//   BATCH (all pieces of one load, store batch or stream)  ->
//                                           <-     ACCEPTED (whose leases it serves; from here on it sends or receives)
//                       ... the pieces, by NCCL ...
//                                           <-     DONE (whose leases were what they promise all the while)
//   RENEW  RELEASE  CLOSE (a lease)         ->     <-  RENEWED  REVOKE  ENDED (a lease)
//   BROKEN (a communicator)                 ->     <-  BROKEN: what was under way on it is lost
//
// Every message starts with a WireHeader; the body of its kind follows:
//
//   header    0 u16 kind     2 u16 version     4 u32 bytes of the whole message
//   OPEN      8 i64 lease   16 i64 bytes      24 char[128] capability   152 char[128] borrower's instance
//   GRANTED, ENDED   8 i64 lease   16 u64 epoch
//   REFUSED  8 i64 lease   16 u32 LeaseRefusal   20 u32 0
//   REVOKE    8 i64 lease   16 i64 nanoseconds left
//   RENEW     8 i64 lease   16 i64 heat, not negative
//   RELEASE, CLOSE, RENEWED     8 i64 lease
//   JOIN      8 u64 number, rising            16 byte[128] unique id
//   BROKEN    8 u64 number
//   BATCH     8 i64 batch, rising   16 u64 communicator's number   24 i64 bytes between the layers of a stream, else 0
//            32 u32 NcclKind   36 u32 layers, else 1   40 u32 leases   44 u32 pieces
//            48 u32 1: layer 0 comes again behind the last, else 0   52 u32 0
//            56 leases x i64, then pieces x NcclPiece, of a store each of at most kMaxNcclStoreBytes
//   ACCEPTED, DONE   8 i64 batch   16 u32 leases   20 u32 0   24 leases x u8, 1 or 0, in the order of the BATCH
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/transport/nccl/nccl_api.h"
#include "engine/transport/wire_message.h"

namespace swiftcache::engine::transport::nccl {

inline constexpr uint16_t kNcclVersion = 4;
inline constexpr uint32_t kMaxNcclPieces = 8192;  // 128 KiB: what a socket's buffer holds at once
inline constexpr uint32_t kMaxNcclLeases = 4096;  // of one side the broker allows no more
inline constexpr uint32_t kMaxNcclLayers = 1024;
inline constexpr int64_t kMaxNcclSlices = 1 << 20;  // of a stream: pieces times arrivals
/// Pieces of a stream of so many layers, of which the first may come again.
constexpr int64_t MostStreamed(int64_t layers) {
  return std::min<int64_t>(kMaxNcclPieces, kMaxNcclSlices / (layers + 1));
}
inline constexpr int64_t kMaxNcclPieceBytes = 1ll << 30;
/// Of a piece of a store, and of all that NCCL takes of one at once: it lands in the donor's memory of that size.
inline constexpr int64_t kMaxNcclStoreBytes = 16ll << 20;
inline constexpr size_t kMaxNcclBatches = 64;  // of a pair, unanswered

enum class NcclMessageKind : uint16_t {
  kOpen = 1,
  kGranted,
  kRefused,
  kRevoke,
  kRenew,
  kRelease,
  kClose,
  kRenewed,
  kEnded,
  kJoin,
  kBroken,
  kBatch,
  kAccepted,
  kDone
};
enum class NcclKind : uint32_t { kLoad = 1, kStore = 2, kStream = 3 };

struct NcclOpen {
  static constexpr auto kKind = NcclMessageKind::kOpen;
  int64_t lease;
  int64_t bytes;
  WireText capability;
  WireText instance;
};
static_assert(sizeof(NcclOpen) == 272 && offsetof(NcclOpen, capability) == 16 && offsetof(NcclOpen, instance) == 144);

/// A message of one grant of a lease: another one of the lease may be on its way.
template <NcclMessageKind kind>
struct NcclOfGrant {
  static constexpr NcclMessageKind kKind = kind;
  int64_t lease;
  uint64_t epoch;
};
using NcclGranted = NcclOfGrant<NcclMessageKind::kGranted>;
using NcclEnded = NcclOfGrant<NcclMessageKind::kEnded>;
static_assert(sizeof(NcclGranted) == 16);

struct NcclRefused {
  static constexpr auto kKind = NcclMessageKind::kRefused;
  int64_t lease;
  LeaseRefusal reason;
  uint32_t zero = 0;
};
static_assert(sizeof(NcclRefused) == 16);

struct NcclRevoke {
  static constexpr auto kKind = NcclMessageKind::kRevoke;
  int64_t lease;
  int64_t time_left_ns;
};
static_assert(sizeof(NcclRevoke) == 16);

struct NcclRenew {
  static constexpr auto kKind = NcclMessageKind::kRenew;
  int64_t lease;
  int64_t heat;
};
static_assert(sizeof(NcclRenew) == 16);

/// A message of a lease and nothing else.
template <NcclMessageKind kind>
struct NcclOfLease {
  static constexpr NcclMessageKind kKind = kind;
  int64_t lease;
};
using NcclRelease = NcclOfLease<NcclMessageKind::kRelease>;
using NcclClose = NcclOfLease<NcclMessageKind::kClose>;
using NcclRenewed = NcclOfLease<NcclMessageKind::kRenewed>;
static_assert(sizeof(NcclRelease) == 8);

struct NcclJoin {
  static constexpr auto kKind = NcclMessageKind::kJoin;
  uint64_t number;
  NcclUniqueId id;
};
static_assert(sizeof(NcclJoin) == 136);

struct NcclBroken {
  static constexpr auto kKind = NcclMessageKind::kBroken;
  uint64_t number;
};
static_assert(sizeof(NcclBroken) == 8);

struct NcclBatchHead {
  static constexpr auto kKind = NcclMessageKind::kBatch;
  int64_t batch;
  uint64_t number;
  int64_t layer_stride;
  NcclKind kind;
  uint32_t layers;
  uint32_t num_leases;
  uint32_t num_pieces;
  uint32_t first_again;
  uint32_t zero = 0;

  /// Layers, and layer 0 again.
  int64_t arrivals() const { return int64_t{layers} + first_again; }
};
static_assert(sizeof(NcclBatchHead) == 48 && offsetof(NcclBatchHead, kind) == 24 &&
              offsetof(NcclBatchHead, first_again) == 40);

/// Of a stream: of its layer 0.
struct NcclPiece {
  int64_t offset;               // in the lease
  uint16_t lease;               // its place among the batch's leases
  uint16_t first_is_there = 0;  // 1: layer 0 is not sent, or only behind the last
  uint32_t bytes;

  int64_t bytes_of_all(const NcclBatchHead& head) const { return bytes * (head.arrivals() - first_is_there); }
};
static_assert(sizeof(NcclPiece) == 16 && offsetof(NcclPiece, bytes) == 12);
static_assert(kMaxNcclLeases <= 1 << 16);

struct NcclBatchMessage {
  NcclBatchHead head = {};
  std::vector<int64_t> leases;
  std::vector<NcclPiece> pieces;
};

/// ACCEPTED or DONE.
struct NcclAnswer {
  bool done = false;
  int64_t batch = 0;
  std::vector<uint8_t> leases;  // 1 or 0
};

using NcclMessage = std::variant<NcclOpen, NcclGranted, NcclRefused, NcclRevoke, NcclRenew, NcclRelease, NcclClose,
                                 NcclRenewed, NcclEnded, NcclJoin, NcclBroken, NcclBatchMessage, NcclAnswer>;

inline constexpr int64_t kMaxNcclMessageBytes =
    sizeof(WireHeader) + sizeof(NcclBatchHead) + kMaxNcclLeases * sizeof(int64_t) + kMaxNcclPieces * sizeof(NcclPiece);

/// Foreign bytes to a message. INVALID_ARGUMENT, with what is wrong: a length, kind or version that is none, a number
/// outside what its field can mean by itself, text that is not ended by zeros.
absl::StatusOr<NcclMessage> ParseNcclMessage(std::span<const std::byte> bytes);
/// INVALID_ARGUMENT: a piece, of all layers, leaves its lease. `lease_bytes`: in the order of the batch's leases, 0 of
/// those that are unknown. REQUIRES: as parsed.
absl::Status CheckNcclPieces(const NcclBatchMessage& message, std::span<const int64_t> lease_bytes);

std::vector<std::byte> EncodeNcclBatch(const NcclBatchMessage& message);
std::vector<std::byte> EncodeNcclAnswer(const NcclAnswer& answer);

/// A message of one size as it goes over the wire.
template <typename Body>
std::vector<std::byte> EncodeNcclMessage(const Body& body) {
  return EncodeWire(static_cast<uint16_t>(Body::kKind), kNcclVersion, {std::as_bytes(std::span(&body, 1))});
}

}  // namespace swiftcache::engine::transport::nccl
