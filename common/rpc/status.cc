// SPDX-License-Identifier: Apache-2.0
#include "common/rpc/status.h"

#include <string>
#include <string_view>

#include "absl/strings/cord.h"
#include "absl/strings/string_view.h"
#include "common/base/utf8.h"
#include "common/rpc/proto_duration.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"

namespace swiftcache {
namespace {

constexpr char kRetryInfoUrl[] = "type.googleapis.com/google.rpc.RetryInfo";

}  // namespace

std::string WireMessage(const absl::Status& status) {
  const std::string_view text(status.message().data(), status.message().size());
  std::string out;
  out.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const Utf8Character c = NextCharacter(text.substr(at));
    const bool valid = c.kind == Utf8Character::Kind::kValid;
    const size_t bytes = valid ? c.bytes : 1;
    out.append(valid ? text.substr(at, bytes) : "?");
    at += bytes;
  }
  return out;
}

grpc::Status ToGrpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  google::rpc::Status rich;
  rich.set_code(static_cast<int>(status.code()));
  rich.set_message(WireMessage(status));
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
  *info.mutable_retry_delay() = DurationToProto(delay);
  status.SetPayload(kRetryInfoUrl, absl::Cord(info.SerializeAsString()));
  return status;
}

std::optional<absl::Duration> RetryDelayOf(const absl::Status& status) {
  const absl::optional<absl::Cord> payload = status.GetPayload(kRetryInfoUrl);
  google::rpc::RetryInfo info;
  if (!payload.has_value() || !info.ParseFromString(std::string(*payload))) return std::nullopt;
  return DurationFromProto(info.retry_delay());
}

}  // namespace swiftcache
