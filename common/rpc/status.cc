// SPDX-License-Identifier: Apache-2.0
#include "common/rpc/status.h"

#include <string>

#include "absl/strings/cord.h"
#include "absl/strings/string_view.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"

namespace swiftcache {
namespace {

constexpr char kRetryInfoUrl[] = "type.googleapis.com/google.rpc.RetryInfo";

// Length of the UTF-8 character that starts at p, or 0.
size_t CharacterBytes(const unsigned char* p, size_t left) {
  if (p[0] < 0x80) return 1;
  const size_t n = p[0] >= 0xC2 && p[0] < 0xE0 ? 2 : (p[0] & 0xF0) == 0xE0 ? 3 : p[0] >= 0xF0 && p[0] < 0xF5 ? 4 : 0;
  if (n == 0 || n > left) return 0;
  for (size_t i = 1; i < n; ++i) {
    if ((p[i] & 0xC0) != 0x80) return 0;
  }
  const bool overlong = (p[0] == 0xE0 && p[1] < 0xA0) || (p[0] == 0xF0 && p[1] < 0x90);
  const bool outside = (p[0] == 0xED && p[1] >= 0xA0) || (p[0] == 0xF4 && p[1] >= 0x90);
  return overlong || outside ? 0 : n;
}

std::string ValidUtf8(absl::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    const size_t n = CharacterBytes(reinterpret_cast<const unsigned char*>(text.data()) + i, text.size() - i);
    out += n == 0 ? std::string("?") : std::string(text.substr(i, n));
    i += n == 0 ? 1 : n;
  }
  return out;
}

}  // namespace

grpc::Status ToGrpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  google::rpc::Status rich;
  rich.set_code(static_cast<int>(status.code()));
  rich.set_message(ValidUtf8(status.message()));
  status.ForEachPayload([&](absl::string_view url, const absl::Cord& value) {
    google::protobuf::Any& detail = *rich.add_details();
    detail.set_type_url(std::string(url));
    detail.set_value(std::string(value));
  });
  const auto code = static_cast<grpc::StatusCode>(status.code());
  if (rich.details().empty()) return grpc::Status(code, rich.message());
  return grpc::Status(code, rich.message(), rich.SerializeAsString());
}

absl::Status FromGrpc(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  absl::Status result(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
  google::rpc::Status rich;
  if (status.error_details().empty() || !rich.ParseFromString(status.error_details())) return result;
  for (const google::protobuf::Any& detail : rich.details()) {
    result.SetPayload(detail.type_url(), absl::Cord(detail.value()));
  }
  return result;
}

absl::Status WithRetryDelay(absl::Status status, absl::Duration delay) {
  google::rpc::RetryInfo info;
  const int64_t seconds = absl::IDivDuration(delay, absl::Seconds(1), &delay);
  info.mutable_retry_delay()->set_seconds(seconds);
  info.mutable_retry_delay()->set_nanos(static_cast<int32_t>(absl::ToInt64Nanoseconds(delay)));
  status.SetPayload(kRetryInfoUrl, absl::Cord(info.SerializeAsString()));
  return status;
}

std::optional<absl::Duration> RetryDelayOf(const absl::Status& status) {
  const absl::optional<absl::Cord> payload = status.GetPayload(kRetryInfoUrl);
  google::rpc::RetryInfo info;
  if (!payload.has_value() || !info.ParseFromString(std::string(*payload))) return std::nullopt;
  return absl::Seconds(info.retry_delay().seconds()) + absl::Nanoseconds(info.retry_delay().nanos());
}

}  // namespace swiftcache
