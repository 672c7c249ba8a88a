// SPDX-License-Identifier: Apache-2.0
#include "common/http/wire_format.h"

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"

namespace swiftcache::http {
namespace {

// The reason phrase and the error code of a status. The codes are those of OpenAI's API.
struct Status {
  int number;
  const char* reason;
  const char* code;
};

constexpr Status kStatuses[] = {
    {100, "Continue", "continue"},
    {200, "OK", "ok"},
    {204, "No Content", "no_content"},
    {400, "Bad Request", "bad_request"},
    {401, "Unauthorized", "invalid_api_key"},
    {403, "Forbidden", "permission_denied"},
    {404, "Not Found", "not_found"},
    {405, "Method Not Allowed", "method_not_allowed"},
    {408, "Request Timeout", "request_timeout"},
    {413, "Payload Too Large", "payload_too_large"},
    {429, "Too Many Requests", "rate_limit_exceeded"},
    {431, "Request Header Fields Too Large", "headers_too_large"},
    {499, "Client Closed Request", "cancelled"},
    {500, "Internal Server Error", "internal_error"},
    {501, "Not Implemented", "not_implemented"},
    {503, "Service Unavailable", "unavailable"},
    {504, "Gateway Timeout", "deadline_exceeded"},
};

Status Find(int number) {
  for (const Status& status : kStatuses) {
    if (status.number == number) return status;
  }
  return {number, "Status", "error"};
}

void AppendPrintable(std::string& out, std::string_view text) {
  for (char c : text) out += static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? ' ' : c;
}

}  // namespace

std::string FormatHead(int status, const HttpHeaders& headers) {
  std::string out = absl::StrCat("HTTP/1.1 ", status, " ", Find(status).reason, "\r\n");
  for (const auto& [name, value] : headers) {
    AppendPrintable(out, name);
    out += ": ";
    AppendPrintable(out, value);
    out += "\r\n";
  }
  return out += "\r\n";
}

std::string FormatChunk(std::string_view data) {
  std::string out = absl::StrCat(absl::Hex(data.size()), "\r\n");
  out.reserve(out.size() + data.size() + 2);
  out += data;
  return out += "\r\n";
}

std::string FormatError(const ErrorFields& fields) {
  nlohmann::json error = {{"message", std::string(fields.message)},
                          {"type", std::string(fields.type)},
                          {"param", nullptr},
                          {"code", std::string(fields.code)}};
  if (fields.param.has_value()) error["param"] = std::string(*fields.param);
  return nlohmann::json{{"error", std::move(error)}}.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string FormatError(int status, std::string_view message) {
  return FormatError(
      {.message = message, .type = status < 500 ? "invalid_request_error" : "server_error", .code = Find(status).code});
}

}  // namespace swiftcache::http
