// SPDX-License-Identifier: Apache-2.0
#include "common/rpc/address.h"

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"

namespace swiftcache {

absl::StatusOr<HostPort> HostPort::Parse(std::string_view text) {
  const absl::string_view all(text.data(), text.size());
  const auto bad = [&](const char* why) {
    return absl::InvalidArgumentError(
        absl::StrCat("address '", absl::CHexEscape(all), "': ", why,
                     "; wanted HOST:PORT with a port of 0 to 65535, as in 127.0.0.1:50051"));
  };
  if (absl::StrContains(all, "://")) return bad("is a URL");
  const size_t colon = all.rfind(':');
  if (colon == absl::string_view::npos) return bad("has no port");
  absl::string_view host = all.substr(0, colon);
  const absl::string_view port = all.substr(colon + 1);
  if (absl::StartsWith(host, "[") && absl::EndsWith(host, "]")) {
    host = host.substr(1, host.size() - 2);
  } else if (absl::StrContains(host, ":")) {
    return bad("an IPv6 host stands in brackets");
  }
  if (host.empty()) return bad("has no host");
  if (host.find_first_of(absl::string_view("[]/ \t\r\n\0", 8)) != absl::string_view::npos) return bad("is not a host");
  HostPort result{.host = std::string(host)};
  if (port.empty() || port.size() > 5 || !absl::SimpleAtoi(port, &result.port) || result.port < 0 ||
      result.port > 65535 || !absl::ascii_isdigit(port[0])) {
    return bad("is not a port");
  }
  return result;
}

std::string HostPort::ToString() const {
  const bool v6 = absl::StrContains(host, ":");
  return v6 ? absl::StrCat("[", host, "]:", port) : absl::StrCat(host, ":", port);
}

std::string ClientAddress(const std::string& peer) {
  absl::string_view address = peer;
  if (!absl::ConsumePrefix(&address, "ipv4:") && !absl::ConsumePrefix(&address, "ipv6:")) return peer;
  return absl::StrReplaceAll(address, {{"%5B", "["}, {"%5D", "]"}, {"%25", "%"}});
}

}  // namespace swiftcache
