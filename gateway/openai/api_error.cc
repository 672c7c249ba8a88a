// SPDX-License-Identifier: Apache-2.0
#include "gateway/openai/api_error.h"

#include <algorithm>
#include <string>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "common/http/wire_format.h"
#include "common/rpc/status.h"

namespace swiftcache::gateway::openai {
namespace {

constexpr char kParamUrl[] = "swiftcache/openai/param";  // of the status payload; it never leaves this process

struct Mapping {
  int http;
  const char* type;
  const char* code;
};

Mapping MappingOf(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kInvalidArgument:
      return {400, "invalid_request_error", "invalid_value"};
    case absl::StatusCode::kOutOfRange:
      return {400, "invalid_request_error", "context_length_exceeded"};
    case absl::StatusCode::kUnauthenticated:
      return {401, "authentication_error", "invalid_api_key"};
    case absl::StatusCode::kPermissionDenied:
      return {403, "permission_error", "permission_denied"};
    case absl::StatusCode::kNotFound:
      return {404, "invalid_request_error", "model_not_found"};
    case absl::StatusCode::kResourceExhausted:
      return {429, "rate_limit_error", "rate_limit_exceeded"};
    case absl::StatusCode::kCancelled:
      return {499, "invalid_request_error", "cancelled"};
    case absl::StatusCode::kUnavailable:
      return {503, "server_error", "unavailable"};
    case absl::StatusCode::kDeadlineExceeded:
      return {504, "server_error", "deadline_exceeded"};
    default:
      return {500, "server_error", "internal_error"};
  }
}

}  // namespace

absl::Status FieldError(std::string_view param, std::string_view message) {
  return AboutField(absl::InvalidArgumentError(absl::string_view(message.data(), message.size())), param);
}

absl::Status AboutField(absl::Status status, std::string_view param) {
  if (!status.ok() && !status.GetPayload(kParamUrl)) {
    status.SetPayload(kParamUrl, absl::Cord(absl::string_view(param.data(), param.size())));
  }
  return status;
}

int HttpStatusOf(const absl::Status& status) { return MappingOf(status.code()).http; }

std::string ErrorBody(const absl::Status& status) {
  const Mapping mapping = MappingOf(status.code());
  const std::string message(status.message());
  http::ErrorFields fields{.message = message, .type = mapping.type, .code = mapping.code};
  const auto payload = status.GetPayload(kParamUrl);
  const std::string param(payload.value_or(absl::Cord()));
  if (payload.has_value()) fields.param = param;
  return http::FormatError(fields);
}

HttpHeaders ErrorHeaders(const absl::Status& status) {
  if (!absl::IsResourceExhausted(status) && !absl::IsUnavailable(status)) return {};
  const absl::Duration delay = RetryDelayOf(status).value_or(absl::Seconds(1));
  const int64_t seconds = std::max<int64_t>(1, absl::ToInt64Seconds(absl::Ceil(delay, absl::Seconds(1))));
  return {{"Retry-After", absl::StrCat(seconds)}};
}

}  // namespace swiftcache::gateway::openai
