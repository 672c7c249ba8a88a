// SPDX-License-Identifier: Apache-2.0
#include "common/http/to_request.h"

#include <cstddef>
#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace swiftcache::http {
namespace {

std::string ToString(boost::beast::string_view text) { return std::string(text.data(), text.size()); }

/// Without the query; of origin-form ("/a?b") and absolute-form ("http://host/a?b") targets.
std::string PathOf(std::string target) {
  if (absl::StartsWith(target, "http://")) {
    const size_t slash = target.find('/', 7);
    target = slash == std::string::npos ? "/" : target.substr(slash);
  }
  return target.substr(0, target.find('?'));
}

}  // namespace

HttpRequest ToRequestLine(const ParsedRequest& message) {
  HttpRequest request;
  request.method = ToString(message.method_string());
  request.path = PathOf(ToString(message.target()));
  return request;
}

HeaderSize SizeOfHeaders(const ParsedRequest& message) {
  size_t bytes = message.method_string().size() + message.target().size();
  int64_t fields = 0;
  for (const auto& field : message) {
    ++fields;
    bytes += field.name_string().size() + field.value().size();
  }
  return {.fields = fields, .bytes = static_cast<int64_t>(bytes)};
}

HttpRequest ToRequest(ParsedRequest&& message) {
  HttpRequest request = ToRequestLine(message);
  for (const auto& field : message) {
    std::string& value = request.headers[absl::AsciiStrToLower(ToString(field.name_string()))];
    absl::StrAppend(&value, value.empty() ? "" : ", ", ToString(field.value()));
  }
  request.body = std::move(message.body());
  return request;
}

}  // namespace swiftcache::http
