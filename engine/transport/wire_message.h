// SPDX-License-Identifier: Apache-2.0
// What the messages of every lease channel have in common, whatever carries the KV: each is one datagram of a Unix
// SEQPACKET socket, in the byte order of the machine that both ends are on, and starts with a WireHeader.
//
//   ASSIGN_OR_RETURN(const WireHeader header, ReadWireHeader(bytes, kShmVersion));
//   ASSIGN_OR_RETURN(const ShmStore store, ReadWireBody<ShmStore>(bytes.subspan(sizeof(WireHeader))));
//
// A body is a struct without padding that names its kind (kKind); an empty one has no bytes. Text is filled up with
// zeros.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <span>
#include <string_view>
#include <type_traits>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/transport/transport.h"

namespace swiftcache::engine::transport {

using WireBytes = std::span<const std::byte>;

struct WireHeader {
  uint16_t kind;
  uint16_t version;
  uint32_t bytes;  // of the whole message
};
static_assert(sizeof(WireHeader) == 8);

inline constexpr int64_t kMaxWireText = 128;
using WireText = char[kMaxWireText];

/// Why a donor opens no channel for a lease.
enum class LeaseRefusal : uint32_t { kNotGranted = 1, kAlreadyOpen = 2 };

/// Connections of one donor that have not shown a capability. A borrower shows its own with its first message, so that
/// the oldest of these is the one to give up.
inline constexpr size_t kMaxStrangers = 64;

/// The header of foreign bytes. INVALID_ARGUMENT: too short, of another version, or of another length than it claims.
absl::StatusOr<WireHeader> ReadWireHeader(WireBytes message, uint16_t version);

/// REQUIRES: bytes.size() >= sizeof(T).
template <typename T>
T ReadFirst(WireBytes bytes) {
  T value;
  std::memcpy(&value, bytes.data(), sizeof(T));
  return value;
}

/// What remains of bytes that make up no whole T is left out.
template <typename T>
std::vector<T> ReadMany(WireBytes bytes) {
  std::vector<T> values(bytes.size() / sizeof(T));
  if (!values.empty()) std::memcpy(values.data(), bytes.data(), values.size() * sizeof(T));
  return values;
}

/// INVALID_ARGUMENT where a message of that kind has another number of bytes after its header.
absl::Status CheckBodySize(int kind, size_t bytes, size_t wanted);

/// The body of a kind that has one size. INVALID_ARGUMENT as CheckBodySize.
template <typename Body>
absl::StatusOr<Body> ReadWireBody(WireBytes bytes) {
  constexpr size_t wanted = std::is_empty_v<Body> ? 0 : sizeof(Body);
  if (absl::Status size = CheckBodySize(static_cast<int>(Body::kKind), bytes.size(), wanted); !size.ok()) return size;
  if constexpr (wanted == 0) {
    return Body{};
  } else {
    return ReadFirst<Body>(bytes);
  }
}

/// A message: its header, then the parts.
std::vector<std::byte> EncodeWire(uint16_t kind, uint16_t version, std::initializer_list<WireBytes> parts);

/// Text into its field. REQUIRES: text.size() <= kMaxWireText.
void SetWireText(WireText& field, std::string_view text);
std::string_view TextOf(const WireText& field);
/// INVALID_ARGUMENT where something but zeros follows the text. `message`: the name of the kind, for the error.
absl::Status CheckWireText(const char* message, const WireText& field);

/// INVALID_ARGUMENT: no reason that this build knows. `message`: as above.
absl::Status CheckRefusal(const char* message, LeaseRefusal reason);
/// Of a REVOKE. INVALID_ARGUMENT: negative.
absl::Status CheckTimeLeft(int64_t time_left_ns);
/// Of a RENEW. INVALID_ARGUMENT: negative.
absl::Status CheckHeat(int64_t heat);
/// Of a grant, whose texts have to fit into a message. INVALID_ARGUMENT: too long, or no capability.
absl::Status CheckGrantTexts(const GrantSpec& spec);

/// In the time that equal texts take, whatever differs.
bool IsSameSecret(std::string_view a, std::string_view b);

}  // namespace swiftcache::engine::transport
