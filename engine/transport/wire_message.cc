// SPDX-License-Identifier: Apache-2.0
#include "engine/transport/wire_message.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"

namespace swiftcache::engine::transport {
namespace {

absl::Status Wrong(const std::string& what) { return absl::InvalidArgumentError(what); }

}  // namespace

absl::StatusOr<WireHeader> ReadWireHeader(WireBytes message, uint16_t version) {
  if (message.size() < sizeof(WireHeader)) return Wrong(absl::StrCat("a message has ", message.size(), " bytes"));
  const auto header = ReadFirst<WireHeader>(message);
  if (header.version != version) {
    return Wrong(absl::StrCat("a message has version ", header.version, "; this build speaks ", version,
                              ": run one version of the engine on one machine"));
  }
  if (header.bytes != message.size()) {
    return Wrong(absl::StrCat("a message claims ", header.bytes, " bytes and has ", message.size()));
  }
  return header;
}

absl::Status CheckBodySize(int kind, size_t bytes, size_t wanted) {
  if (bytes == wanted) return absl::OkStatus();
  return Wrong(
      absl::StrCat("a message of kind ", kind, " has ", bytes, " bytes after its header; ", wanted, " were wanted"));
}

std::vector<std::byte> EncodeWire(uint16_t kind, uint16_t version, std::initializer_list<WireBytes> parts) {
  size_t bytes = sizeof(WireHeader);
  for (const WireBytes part : parts) bytes += part.size();
  const WireHeader header = {kind, version, static_cast<uint32_t>(bytes)};
  const WireBytes head = std::as_bytes(std::span(&header, 1));
  std::vector<std::byte> message;
  message.reserve(bytes);
  message.insert(message.end(), head.begin(), head.end());
  for (const WireBytes part : parts) message.insert(message.end(), part.begin(), part.end());
  return message;
}

void SetWireText(WireText& field, std::string_view text) {
  std::memset(field, 0, kMaxWireText);
  std::memcpy(field, text.data(), std::min<size_t>(text.size(), kMaxWireText));
}

std::string_view TextOf(const WireText& field) {
  return {field, static_cast<size_t>(std::find(field, field + kMaxWireText, '\0') - field)};
}

absl::Status CheckWireText(const char* message, const WireText& field) {
  const std::string_view rest(field + TextOf(field).size(), field + kMaxWireText);
  if (rest.find_first_not_of('\0') == rest.npos) return absl::OkStatus();
  return Wrong(absl::StrCat(message, " has text that is not ended by zeros"));
}

absl::Status CheckRefusal(const char* message, LeaseRefusal reason) {
  if (reason == LeaseRefusal::kNotGranted || reason == LeaseRefusal::kAlreadyOpen) return absl::OkStatus();
  return Wrong(absl::StrCat(message, " has the unknown reason ", static_cast<uint32_t>(reason)));
}

absl::Status CheckTimeLeft(int64_t time_left_ns) {
  if (time_left_ns >= 0) return absl::OkStatus();
  return Wrong(absl::StrCat("REVOKE leaves ", time_left_ns, " ns"));
}

absl::Status CheckHeat(int64_t heat) {
  if (heat >= 0) return absl::OkStatus();
  return Wrong(absl::StrCat("RENEW says that its lease has heat ", heat));
}

absl::Status CheckGrantTexts(const GrantSpec& spec) {
  const size_t longest = std::max(spec.capability.size(), spec.borrower_instance.size());
  if (!spec.capability.empty() && longest <= kMaxWireText) return absl::OkStatus();
  return Wrong(absl::StrCat("lease ", spec.lease.value(), " wants a capability, and that and the borrower's instance ",
                            "of at most ", kMaxWireText, " bytes"));
}

bool IsSameSecret(std::string_view a, std::string_view b) {
  unsigned char difference = a.size() != b.size();
  for (size_t i = 0; i < a.size() && i < b.size(); ++i) difference |= static_cast<unsigned char>(a[i] ^ b[i]);
  return difference == 0;
}

}  // namespace swiftcache::engine::transport
