// SPDX-License-Identifier: Apache-2.0
#include "common/http/wire_format.h"

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"

namespace swiftcache::http {
namespace {

const char* Reason(int status) {
  switch (status) {
    case 100:
      return "Continue";
    case 200:
      return "OK";
    case 204:
      return "No Content";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 413:
      return "Payload Too Large";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 499:
      return "Client Closed Request";
    case 500:
      return "Internal Server Error";
    case 501:
      return "Not Implemented";
    case 503:
      return "Service Unavailable";
    case 504:
      return "Gateway Timeout";
    default:
      return "Status";
  }
}

void AppendPrintable(std::string& out, std::string_view text) {
  for (char c : text) out += static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? ' ' : c;
}

}  // namespace

std::string FormatHead(int status, const HttpHeaders& headers) {
  std::string out = absl::StrCat("HTTP/1.1 ", status, " ", Reason(status), "\r\n");
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

std::string FormatError(int status, std::string_view message) {
  nlohmann::json error = {{"message", std::string(message)},
                          {"type", status < 500 ? "invalid_request_error" : "server_error"},
                          {"param", nullptr},
                          {"code", status}};
  return nlohmann::json{{"error", std::move(error)}}.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace swiftcache::http
