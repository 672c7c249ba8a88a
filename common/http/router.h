// SPDX-License-Identifier: Apache-2.0
// Passes a request to the handler for its path and method: the given routes and the built-in /live, /health, /metrics.
//
//   Router router(options, {{"GET", "/v1/models", handler}});
//   router.Handle(std::move(request), responder);
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/http/http_server.h"

namespace swiftcache::http {

/// Thread-safety: immutable. Ownership: owns the handlers.
/// Errors: a page of another origin that asks for more than to read 403, unknown path 404 (names those there are), wrong
/// method 405 (names the ones allowed), a handler that throws 500; nothing escapes.
class Router {
 public:
  Router(const HttpServer::Options& options, std::vector<HttpRoute> routes);
  /// A GET or HEAD of /live, /health or /metrics.
  static bool IsBuiltIn(const HttpRequest& request);
  void Handle(HttpRequest request, std::shared_ptr<HttpResponder> responder) const;

 private:
  using Methods = std::map<std::string, HttpHandler>;
  const Methods* Find(const std::string& path) const;
  std::string Paths() const;

  std::map<std::string, Methods> exact_;
  std::map<std::string, Methods> prefixes_;
};

}  // namespace swiftcache::http
