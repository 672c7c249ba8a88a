// SPDX-License-Identifier: Apache-2.0
#include "common/http/router.h"

#include <exception>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/http/wire_format.h"
#include "common/log/log.h"

namespace swiftcache::http {
namespace {

constexpr char kJson[] = "application/json";
constexpr char kLive[] = "/live", kHealth[] = "/health", kMetrics[] = "/metrics";  // built in

HttpHandler Fixed(int status, std::string body) {
  return [status, body](HttpRequest, std::shared_ptr<HttpResponder> responder) {
    responder->Send(status, kJson, body, {});
  };
}

HttpHandler Health(std::function<bool()> ready) {
  return [ready = std::move(ready)](HttpRequest, std::shared_ptr<HttpResponder> responder) {
    const bool ok = !ready || ready();
    responder->Send(ok ? 200 : 503, kJson, ok ? R"({"status":"ok"})" : R"({"status":"not ready"})", {});
  };
}

HttpHandler MetricsText(std::function<std::string()> metrics) {
  return [metrics = std::move(metrics)](HttpRequest, std::shared_ptr<HttpResponder> responder) {
    responder->Send(200, "text/plain; version=0.0.4", metrics ? metrics() : std::string(), {});
  };
}

void SendError(HttpResponder& responder, int status, const std::string& message, HttpHeaders headers = {}) {
  responder.Send(status, kJson, FormatError(status, message), std::move(headers));
}

// Whether a page of another origin has its browser ask for more than to read. Some of that browsers ask without leave, as
// where it is text/plain; but to https and to loopback they say whose page asks, and no page can say otherwise.
bool IsOfAnotherOrigin(const HttpRequest& request) {
  if (request.method == "GET" || request.method == "HEAD" || request.method == "OPTIONS") return false;
  const std::string_view site = request.Header("sec-fetch-site");
  return site == "cross-site" || site == "same-site";
}

}  // namespace

Router::Router(const HttpServer::Options& options, std::vector<HttpRoute> routes) {
  exact_[kLive]["GET"] = Fixed(200, R"({"status":"alive"})");
  exact_[kHealth]["GET"] = Health(options.ready);
  exact_[kMetrics]["GET"] = MetricsText(options.metrics);
  for (HttpRoute& route : routes) {
    const bool is_prefix = absl::EndsWith(route.path, "/*");
    if (is_prefix) route.path.pop_back();
    (is_prefix ? prefixes_ : exact_)[route.path][route.method] = std::move(route.handler);
  }
}

bool Router::IsBuiltIn(const HttpRequest& request) {
  return (request.method == "GET" || request.method == "HEAD") &&
         (request.path == kLive || request.path == kHealth || request.path == kMetrics);
}

const Router::Methods* Router::Find(const std::string& path) const {
  if (auto it = exact_.find(path); it != exact_.end()) return &it->second;
  for (auto it = prefixes_.rbegin(); it != prefixes_.rend(); ++it) {  // of two that fit, the longer sorts later
    if (absl::StartsWith(path, it->first)) return &it->second;
  }
  return nullptr;
}

std::string Router::Paths() const {
  std::vector<std::string> paths;
  for (const auto& [path, methods] : exact_) paths.push_back(path);
  for (const auto& [path, methods] : prefixes_) paths.push_back(path + "*");
  return absl::StrJoin(paths, ", ");
}

void Router::Handle(HttpRequest request, std::shared_ptr<HttpResponder> responder) const {
  if (IsOfAnotherOrigin(request)) {
    return SendError(*responder, 403,
                     absl::StrCat(request.method, " by a page of another origin (Sec-Fetch-Site: ",
                                  std::string(request.Header("sec-fetch-site")), "): serve that page and this API ",
                                  "from one origin, or by a proxy that removes this header"));
  }
  const Methods* methods = Find(request.path);
  if (methods == nullptr) {
    return SendError(*responder, 404,
                     absl::StrCat("no such path: ", request.method, " ", request.path, "; there are ", Paths()));
  }
  auto handler = methods->find(request.method == "HEAD" ? "GET" : request.method);
  if (handler == methods->end()) {
    const std::string allowed = absl::StrJoin(*methods, ", ", [](std::string* out, const auto& method) {
      absl::StrAppend(out, method.first, method.first == "GET" ? ", HEAD" : "");
    });
    return SendError(*responder, 405, absl::StrCat(request.path, " allows ", allowed, ", found ", request.method),
                     {{"Allow", allowed}});
  }
  try {
    handler->second(std::move(request), responder);
  } catch (const std::exception& error) {
    LOG(ERROR) << "an HTTP handler threw: " << error.what();
    SendError(*responder, 500, "internal error");
  }
}

}  // namespace swiftcache::http
