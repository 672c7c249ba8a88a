// SPDX-License-Identifier: Apache-2.0
#include "gateway/relay/access_log.h"

#include <ostream>
#include <string>

#include "common/log/log.h"

namespace swiftcache::gateway::relay {
namespace {

constexpr size_t kShownIdBytes = 256;  // a refused id may be of any length

void PrintAnswer(std::ostream& out, const Access& access) {
  out << LogField{"engine", access.engine} << LogField{"attempts", access.attempts}
      << LogField{"prompt_tokens", access.prompt_tokens} << LogField{"cached_tokens", access.cached_tokens}
      << LogField{"completion_tokens", access.completion_tokens} << LogField{"text_bytes", access.text_bytes};
  if (access.time_to_first_token.has_value()) {
    out << LogField{"ttft_ms", absl::ToDoubleMilliseconds(*access.time_to_first_token)};
  }
}

}  // namespace

void LogAccess(const Access& access) {
  const GenerateRequest& request = access.request;
  const std::string code = absl::StatusCodeToString(access.status.code());
  const std::string_view id = std::string_view(request.request_id).substr(0, kShownIdBytes);
  google::LogMessage line(__FILE__, __LINE__, google::GLOG_INFO);
  std::ostream& out = line.stream();
  out << RequestTag{id, request.traceparent, access.model} << LogField{"door", request.door}
      << LogField{"client", request.client} << LogField{"code", code};
  if (access.attempts > 0) PrintAnswer(out, access);
  const absl::string_view error = access.status.message();
  out << LogField{"e2e_ms", absl::ToDoubleMilliseconds(access.total)}
      << LogField{"error", std::string_view(error.data(), error.size())}
      << (access.attempts > 0 ? "request ended" : "request refused");
}

}  // namespace swiftcache::gateway::relay
