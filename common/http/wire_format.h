// SPDX-License-Identifier: Apache-2.0
// A response as HTTP/1.1 text: status line, headers, chunks, and the JSON of an error.
//
//   std::string bytes = FormatHead(200, {{"Content-Type", "text/plain"}, {"Content-Length", "2"}}) + "ok";
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "common/http/http_server.h"

namespace swiftcache::http {

/// Status line and headers with the empty line at the end. Control characters in values become spaces, so that a value
/// sent by a client cannot start another header.
std::string FormatHead(int status, const HttpHeaders& headers);

/// One piece of a chunked body; `data` is not empty.
std::string FormatChunk(std::string_view data);
inline constexpr std::string_view kLastChunk = "0\r\n\r\n";

/// What the JSON of an error holds. `param`: the field of the request that the error is about.
struct ErrorFields {
  std::string_view message, type, code;
  std::optional<std::string_view> param = std::nullopt;
};

/// `{"error":{"message","type","param","code"}}` in one line; bytes that are not UTF-8 become U+FFFD.
std::string FormatError(const ErrorFields& fields);
/// The same, with type and code as the HTTP status has them and without `param`.
std::string FormatError(int status, std::string_view message);

}  // namespace swiftcache::http
