// SPDX-License-Identifier: Apache-2.0
// What Beast has parsed, as an HttpRequest.
//
//   HttpRequest request = ToRequest(parser.release());
#pragma once

#include <boost/beast/http/message.hpp>
#include <boost/beast/http/string_body.hpp>
#include <cstdint>

#include "common/http/http_server.h"

namespace swiftcache::http {

using ParsedRequest = boost::beast::http::request<boost::beast::http::string_body>;

/// Method and path: of a request whose headers are there, and its body perhaps not.
HttpRequest ToRequestLine(const ParsedRequest& message);
/// What has been read of a request's headers and trailers. `bytes`: of names, values and the request line.
struct HeaderSize {
  int64_t fields = 0;
  int64_t bytes = 0;
};
HeaderSize SizeOfHeaders(const ParsedRequest& message);
/// Without the client. REQUIRES: all of it is there.
HttpRequest ToRequest(ParsedRequest&& message);

}  // namespace swiftcache::http
