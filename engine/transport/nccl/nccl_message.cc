// SPDX-License-Identifier: Apache-2.0
#include "engine/transport/nccl/nccl_message.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/base/units.h"

namespace swiftcache::engine::transport::nccl {
namespace {

struct NcclAnswerHead {
  int64_t batch;
  uint32_t num_leases;
  uint32_t zero = 0;
};
static_assert(sizeof(NcclAnswerHead) == 16);

absl::Status Wrong(const std::string& what) { return absl::InvalidArgumentError(what); }

absl::Status Check(const NcclOpen& open) {
  if (open.bytes <= 0) return Wrong(absl::StrCat("OPEN of a lease of ", open.bytes, " bytes"));
  RETURN_IF_ERROR(CheckWireText("OPEN", open.capability));
  return CheckWireText("OPEN", open.instance);
}

// Of a field that means nothing yet.
absl::Status CheckZero(const char* message, uint32_t zero) {
  return zero == 0 ? absl::OkStatus() : Wrong(absl::StrCat(message, " has ", zero, " in a field that is to be 0"));
}

absl::Status Check(const NcclRefused& refused) {
  RETURN_IF_ERROR(CheckZero("REFUSED", refused.zero));
  return CheckRefusal("REFUSED", refused.reason);
}

absl::Status Check(const NcclRevoke& revoke) { return CheckTimeLeft(revoke.time_left_ns); }

absl::Status Check(const NcclRenew& renew) { return CheckHeat(renew.heat); }

template <typename Body>
absl::Status Check(const Body&) {
  return absl::OkStatus();
}

// The body of a kind that has one size.
template <typename Body>
absl::StatusOr<NcclMessage> Parse(WireBytes bytes) {
  ASSIGN_OR_RETURN(const Body body, ReadWireBody<Body>(bytes));
  RETURN_IF_ERROR(Check(body));
  return NcclMessage(body);
}

absl::Status CheckHead(const NcclBatchHead& head) {
  if (head.kind != NcclKind::kLoad && head.kind != NcclKind::kStore && head.kind != NcclKind::kStream) {
    return Wrong(absl::StrCat("BATCH is of the unknown kind ", static_cast<uint32_t>(head.kind)));
  }
  const bool streams = head.kind == NcclKind::kStream;
  if (head.num_leases < 1 || head.num_leases > kMaxNcclLeases || head.num_pieces < 1 ||
      head.num_pieces > kMaxNcclPieces || head.layers < 1 || head.layers > (streams ? kMaxNcclLayers : 1) ||
      head.first_again > (head.layers > 1 ? 1 : 0) || head.arrivals() * head.num_pieces > kMaxNcclSlices ||
      head.layer_stride < 0 || (!streams && head.layer_stride != 0)) {
    return Wrong(absl::StrCat("BATCH has ", head.num_pieces, " pieces of ", head.num_leases, " leases, in ",
                              head.layers, " layers ", head.layer_stride, " bytes apart, the first ", head.first_again,
                              " times again"));
  }
  return CheckZero("BATCH", head.zero);
}

absl::StatusOr<NcclMessage> ParseBatch(WireBytes body) {
  if (body.size() < sizeof(NcclBatchHead)) return Wrong(absl::StrCat("BATCH has ", body.size(), " bytes"));
  NcclBatchMessage message = {.head = ReadFirst<NcclBatchHead>(body)};
  RETURN_IF_ERROR(CheckHead(message.head));
  const size_t lease_bytes = message.head.num_leases * sizeof(int64_t);
  const WireBytes tail = body.subspan(sizeof(NcclBatchHead));
  if (tail.size() != lease_bytes + message.head.num_pieces * sizeof(NcclPiece)) {
    return Wrong(absl::StrCat("BATCH has ", tail.size(), " bytes for ", message.head.num_leases, " leases and ",
                              message.head.num_pieces, " pieces"));
  }
  message.leases = ReadMany<int64_t>(tail.first(lease_bytes));
  message.pieces = ReadMany<NcclPiece>(tail.subspan(lease_bytes));
  const int64_t most_bytes = message.head.kind == NcclKind::kStore ? kMaxNcclStoreBytes : kMaxNcclPieceBytes;
  for (const NcclPiece& piece : message.pieces) {
    if (piece.lease >= message.head.num_leases || piece.bytes == 0 || piece.bytes > most_bytes || piece.offset < 0 ||
        piece.first_is_there > (message.head.kind == NcclKind::kStream ? 1 : 0)) {
      return Wrong(absl::StrCat("BATCH has a piece of ", piece.bytes, " bytes at ", piece.offset, " of its lease ",
                                piece.lease, ", its first layer ", piece.first_is_there, " times there"));
    }
  }
  return NcclMessage(std::move(message));
}

absl::StatusOr<NcclMessage> ParseAnswer(bool done, WireBytes body) {
  if (body.size() < sizeof(NcclAnswerHead)) return Wrong(absl::StrCat("an answer has ", body.size(), " bytes"));
  const auto head = ReadFirst<NcclAnswerHead>(body);
  RETURN_IF_ERROR(CheckZero("an answer", head.zero));
  const WireBytes tail = body.subspan(sizeof(NcclAnswerHead));
  if (head.num_leases < 1 || head.num_leases > kMaxNcclLeases || tail.size() != head.num_leases) {
    return Wrong(absl::StrCat("an answer about ", head.num_leases, " leases has ", tail.size(), " bytes for them"));
  }
  return NcclMessage(NcclAnswer{.done = done, .batch = head.batch, .leases = ReadMany<uint8_t>(tail)});
}

}  // namespace

absl::StatusOr<NcclMessage> ParseNcclMessage(WireBytes bytes) {
  ASSIGN_OR_RETURN(const WireHeader header, ReadWireHeader(bytes, kNcclVersion));
  const WireBytes body = bytes.subspan(sizeof(WireHeader));
  switch (static_cast<NcclMessageKind>(header.kind)) {
    case NcclMessageKind::kOpen:
      return Parse<NcclOpen>(body);
    case NcclMessageKind::kGranted:
      return Parse<NcclGranted>(body);
    case NcclMessageKind::kRefused:
      return Parse<NcclRefused>(body);
    case NcclMessageKind::kRevoke:
      return Parse<NcclRevoke>(body);
    case NcclMessageKind::kRenew:
      return Parse<NcclRenew>(body);
    case NcclMessageKind::kRelease:
      return Parse<NcclRelease>(body);
    case NcclMessageKind::kClose:
      return Parse<NcclClose>(body);
    case NcclMessageKind::kRenewed:
      return Parse<NcclRenewed>(body);
    case NcclMessageKind::kEnded:
      return Parse<NcclEnded>(body);
    case NcclMessageKind::kJoin:
      return Parse<NcclJoin>(body);
    case NcclMessageKind::kBroken:
      return Parse<NcclBroken>(body);
    case NcclMessageKind::kBatch:
      return ParseBatch(body);
    case NcclMessageKind::kAccepted:
      return ParseAnswer(false, body);
    case NcclMessageKind::kDone:
      return ParseAnswer(true, body);
  }
  return Wrong(absl::StrCat("a message has the unknown kind ", header.kind));
}

// Subtractions and divisions, so that nothing can wrap: sizes, offsets and strides are not negative.
absl::Status CheckNcclPieces(const NcclBatchMessage& message, std::span<const int64_t> lease_bytes) {
  const NcclBatchHead& head = message.head;
  for (const NcclPiece& piece : message.pieces) {
    const int64_t whole = lease_bytes[piece.lease];
    if (whole == 0) continue;
    const int64_t room = whole - static_cast<int64_t>(piece.bytes), more_layers = int64_t{head.layers} - 1;
    if (piece.offset > room || (more_layers > 0 && head.layer_stride > (room - piece.offset) / more_layers)) {
      return Wrong(absl::StrCat("BATCH has a piece of ", piece.bytes, " bytes at ", piece.offset, ", ", head.layers,
                                " times ", head.layer_stride, " bytes apart, which leaves the lease of ", whole,
                                " bytes"));
    }
  }
  return absl::OkStatus();
}

std::vector<std::byte> EncodeNcclBatch(const NcclBatchMessage& message) {
  return EncodeWire(static_cast<uint16_t>(NcclBatchHead::kKind), kNcclVersion,
                    {std::as_bytes(std::span(&message.head, 1)), std::as_bytes(std::span(message.leases)),
                     std::as_bytes(std::span(message.pieces))});
}

std::vector<std::byte> EncodeNcclAnswer(const NcclAnswer& answer) {
  const NcclAnswerHead head = {.batch = answer.batch, .num_leases = static_cast<uint32_t>(answer.leases.size())};
  const auto kind = answer.done ? NcclMessageKind::kDone : NcclMessageKind::kAccepted;
  return EncodeWire(static_cast<uint16_t>(kind), kNcclVersion,
                    {std::as_bytes(std::span(&head, 1)), std::as_bytes(std::span(answer.leases))});
}

}  // namespace swiftcache::engine::transport::nccl
