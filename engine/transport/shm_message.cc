// SPDX-License-Identifier: Apache-2.0
#include "engine/transport/shm_message.h"

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/base/units.h"

namespace swiftcache::engine::transport {
namespace {

absl::Status Wrong(const std::string& what) { return absl::InvalidArgumentError(what); }

absl::Status Check(const ShmHello& hello) {
  if (hello.staging_bytes <= 0 || hello.staging_bytes > kMaxStagingBytes) {
    return Wrong(absl::StrCat("HELLO brings staging memory of ", hello.staging_bytes, " bytes; 1 to ", kMaxStagingBytes,
                              " are allowed"));
  }
  RETURN_IF_ERROR(CheckWireText("HELLO", hello.capability));
  return CheckWireText("HELLO", hello.instance);
}

absl::Status Check(const ShmRefuse& refuse) { return CheckRefusal("REFUSE", refuse.reason); }

absl::Status Check(const ShmRevoke& revoke) { return CheckTimeLeft(revoke.time_left_ns); }

absl::Status Check(const ShmRenew& renew) { return CheckHeat(renew.heat); }

absl::Status Check(const ShmStore& store) {
  if (store.bytes <= 0 || store.offset < 0 || store.staging_offset < 0) {
    return Wrong(absl::StrCat("STORE of ", store.bytes, " bytes at ", store.offset, " from ", store.staging_offset));
  }
  return absl::OkStatus();
}

template <typename Body>
absl::Status Check(const Body&) {
  return absl::OkStatus();
}

template <typename Body>
absl::StatusOr<ShmMessage> Parse(WireBytes bytes) {
  ASSIGN_OR_RETURN(const Body body, ReadWireBody<Body>(bytes));
  RETURN_IF_ERROR(Check(body));
  return ShmMessage(body);
}

absl::StatusOr<ShmMessage> ParseGrant(WireBytes body) {
  if (body.size() < sizeof(ShmGrant)) return Wrong(absl::StrCat("GRANT has ", body.size(), " bytes after its header"));
  ShmGrantMessage message = {.grant = ReadFirst<ShmGrant>(body)};
  const WireBytes tail = body.subspan(sizeof(ShmGrant));
  const int64_t pieces = message.grant.num_pieces;
  if (pieces < 1 || pieces > kMaxShmPieces || tail.size() != pieces * sizeof(ShmPiece)) {
    return Wrong(absl::StrCat("GRANT of ", pieces, " pieces has ", tail.size(), " bytes for them"));
  }
  if (message.grant.word < 0) return Wrong(absl::StrCat("GRANT names generation word ", message.grant.word));
  message.pieces = ReadMany<ShmPiece>(tail);
  return ShmMessage(std::move(message));
}

}  // namespace

absl::StatusOr<ShmMessage> ParseShmMessage(WireBytes bytes) {
  ASSIGN_OR_RETURN(const WireHeader header, ReadWireHeader(bytes, kShmVersion));
  const WireBytes body = bytes.subspan(sizeof(WireHeader));
  switch (static_cast<ShmKind>(header.kind)) {
    case ShmKind::kHello:
      return Parse<ShmHello>(body);
    case ShmKind::kGrant:
      return ParseGrant(body);
    case ShmKind::kRefuse:
      return Parse<ShmRefuse>(body);
    case ShmKind::kRenew:
      return Parse<ShmRenew>(body);
    case ShmKind::kRenewed:
      return Parse<ShmRenewed>(body);
    case ShmKind::kRevoke:
      return Parse<ShmRevoke>(body);
    case ShmKind::kRelease:
      return Parse<ShmRelease>(body);
    case ShmKind::kStore:
      return Parse<ShmStore>(body);
    case ShmKind::kStored:
      return Parse<ShmStored>(body);
  }
  return Wrong(absl::StrCat("a message has the unknown kind ", header.kind));
}

absl::Status CheckShmStore(const ShmStore& store, int64_t lease_bytes, int64_t staging_bytes) {
  // Subtractions, so that nothing can wrap: offsets are not negative and bytes are positive.
  if (store.bytes > lease_bytes || store.offset > lease_bytes - store.bytes || store.bytes > staging_bytes ||
      store.staging_offset > staging_bytes - store.bytes) {
    return Wrong(absl::StrCat("STORE of ", store.bytes, " bytes at ", store.offset, " from ", store.staging_offset,
                              " leaves the lease of ", lease_bytes, " bytes or the staging memory of ", staging_bytes));
  }
  return absl::OkStatus();
}

absl::Status CheckShmGrant(const ShmGrantMessage& message, int64_t lease_bytes, int64_t page_bytes) {
  int64_t left = lease_bytes;
  for (const ShmPiece& piece : message.pieces) {
    if (piece.offset < 0 || piece.offset % page_bytes != 0 || piece.bytes <= 0 || piece.bytes % page_bytes != 0 ||
        piece.bytes > left || !CheckedAdd(piece.offset, piece.bytes)) {
      return Wrong(absl::StrCat("GRANT has a piece of ", piece.bytes, " bytes at ", piece.offset));
    }
    left -= piece.bytes;
  }
  if (left != 0 || message.grant.bytes != lease_bytes) {
    return Wrong(absl::StrCat("GRANT is of ", message.grant.bytes, " bytes; ", lease_bytes, " were leased"));
  }
  return absl::OkStatus();
}

}  // namespace swiftcache::engine::transport
