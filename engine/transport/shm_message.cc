// SPDX-License-Identifier: Apache-2.0
#include "engine/transport/shm_message.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/base/units.h"

namespace swiftcache::engine::transport {
namespace {

using Bytes = std::span<const std::byte>;

absl::Status Wrong(const std::string& what) { return absl::InvalidArgumentError(what); }

template <typename T>
T ReadFirst(Bytes bytes) {
  T value;
  std::memcpy(&value, bytes.data(), sizeof(T));
  return value;
}

// The body of a kind that has one size.
template <typename Body>
absl::StatusOr<Body> ReadBody(Bytes body) {
  constexpr size_t wanted = std::is_empty_v<Body> ? 0 : sizeof(Body);
  if (body.size() != wanted) {
    return Wrong(absl::StrCat("a message of kind ", static_cast<int>(Body::kKind), " has ", body.size(),
                              " bytes after its header; ", wanted, " were wanted"));
  }
  if constexpr (wanted == 0) {
    return Body{};
  } else {
    return ReadFirst<Body>(body);
  }
}

bool IsText(const char (&field)[kMaxShmText]) {
  const char* const end = std::find(field, field + kMaxShmText, '\0');
  return std::all_of(end, field + kMaxShmText, [](char c) { return c == '\0'; });
}

absl::Status Check(const ShmHello& hello) {
  if (hello.staging_bytes <= 0 || hello.staging_bytes > kMaxStagingBytes) {
    return Wrong(absl::StrCat("HELLO brings staging memory of ", hello.staging_bytes, " bytes; 1 to ", kMaxStagingBytes,
                              " are allowed"));
  }
  if (!IsText(hello.capability) || !IsText(hello.instance)) return Wrong("HELLO has text that is not ended by zeros");
  return absl::OkStatus();
}

absl::Status Check(const ShmRefuse& refuse) {
  if (refuse.reason != ShmRefusal::kNotGranted && refuse.reason != ShmRefusal::kAlreadyOpen) {
    return Wrong(absl::StrCat("REFUSE has the unknown reason ", static_cast<uint32_t>(refuse.reason)));
  }
  return absl::OkStatus();
}

absl::Status Check(const ShmRevoke& revoke) {
  if (revoke.time_left_ns < 0) return Wrong(absl::StrCat("REVOKE leaves ", revoke.time_left_ns, " ns"));
  return absl::OkStatus();
}

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
absl::StatusOr<ShmMessage> Parse(Bytes bytes) {
  ASSIGN_OR_RETURN(const Body body, ReadBody<Body>(bytes));
  RETURN_IF_ERROR(Check(body));
  return ShmMessage(body);
}

absl::StatusOr<ShmMessage> ParseGrant(Bytes body) {
  if (body.size() < sizeof(ShmGrant)) return Wrong(absl::StrCat("GRANT has ", body.size(), " bytes after its header"));
  ShmGrantMessage message = {.grant = ReadFirst<ShmGrant>(body)};
  const Bytes tail = body.subspan(sizeof(ShmGrant));
  const int64_t pieces = message.grant.num_pieces;
  if (pieces < 1 || pieces > kMaxShmPieces || tail.size() != pieces * sizeof(ShmPiece)) {
    return Wrong(absl::StrCat("GRANT of ", pieces, " pieces has ", tail.size(), " bytes for them"));
  }
  if (message.grant.word < 0) return Wrong(absl::StrCat("GRANT names generation word ", message.grant.word));
  message.pieces.resize(pieces);
  std::memcpy(message.pieces.data(), tail.data(), tail.size());
  return ShmMessage(std::move(message));
}

}  // namespace

absl::StatusOr<ShmMessage> ParseShmMessage(Bytes bytes) {
  if (bytes.size() < sizeof(ShmHeader)) return Wrong(absl::StrCat("a message has ", bytes.size(), " bytes"));
  const ShmHeader header = ReadFirst<ShmHeader>(bytes);
  if (header.version != kShmVersion) {
    return Wrong(absl::StrCat("a message has version ", header.version, "; this build speaks ", kShmVersion,
                              ": run one version of the engine on one machine"));
  }
  if (header.bytes != bytes.size()) {
    return Wrong(absl::StrCat("a message claims ", header.bytes, " bytes and has ", bytes.size()));
  }
  const Bytes body = bytes.subspan(sizeof(ShmHeader));
  switch (header.kind) {
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
  return Wrong(absl::StrCat("a message has the unknown kind ", static_cast<uint16_t>(header.kind)));
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

void SetShmText(char (&field)[kMaxShmText], std::string_view text) {
  std::memset(field, 0, kMaxShmText);
  std::memcpy(field, text.data(), std::min<size_t>(text.size(), kMaxShmText));
}

std::string_view ShmText(const char (&field)[kMaxShmText]) {
  return {field, static_cast<size_t>(std::find(field, field + kMaxShmText, '\0') - field)};
}

std::vector<std::byte> internal::EncodeShm(ShmKind kind, Bytes body, Bytes tail) {
  const ShmHeader header = {kind, kShmVersion, static_cast<uint32_t>(sizeof(ShmHeader) + body.size() + tail.size())};
  const Bytes head = std::as_bytes(std::span(&header, 1));
  std::vector<std::byte> message(head.begin(), head.end());
  message.insert(message.end(), body.begin(), body.end());
  message.insert(message.end(), tail.begin(), tail.end());
  return message;
}

}  // namespace swiftcache::engine::transport
