// SPDX-License-Identifier: Apache-2.0
// The one HTTP/1.1 server shell (Boost.Beast): /live, /health and /metrics for every process, and what doors add.
//
//   HttpServer::Options options{.listen = "127.0.0.1:9180"};
//   ASSIGN_OR_RETURN(auto server, HttpServer::Create(options, {{"GET", "/v1/models", handler}}));
//   LOG(INFO) << "http on " << server->address();
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace swiftcache {

/// A whole request. Header names are lower-case.
struct HttpRequest {
  std::string method;
  std::string path;    // without the query
  std::string client;  // host:port of the connection's other end
  std::map<std::string, std::string> headers;
  std::string body;

  std::string_view Header(const std::string& lower_case_name) const {
    auto it = headers.find(lower_case_name);
    return it == headers.end() ? std::string_view() : std::string_view(it->second);
  }
};

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

/// Sends the response to one request: Send once, or StartStream, Write*, Finish.
/// Thread-safety: safe; calls return at once, bytes leave in order. Ownership: shared by handler and connection, since
/// either may end first; one that is destroyed unused sends a 500. Errors: after the client has gone, or was
/// disconnected because it does not read (Options::max_unsent_bytes, max_all_unsent_bytes), every call is a no-op and
/// Write returns false.
class HttpResponder {
 public:
  virtual ~HttpResponder() = default;
  /// `held` is let go once the bytes have been written, or never will be.
  virtual void Send(int status, std::string content_type, std::string body, HttpHeaders headers = {},
                    std::shared_ptr<void> held = nullptr) = 0;
  virtual void StartStream(int status, std::string content_type, HttpHeaders headers = {}) = 0;  // chunked
  virtual bool Write(std::string chunk) = 0;
  virtual void Finish() = 0;
  /// `callback` runs at most once, when the client closes before the response is complete. At once if it already has.
  virtual void OnDisconnect(std::function<void()> callback) = 0;
};

/// Must not block: a handler with long work returns and uses the responder later.
using HttpHandler = std::function<void(HttpRequest, std::shared_ptr<HttpResponder>)>;

struct HttpRoute {
  std::string method;  // GET also answers HEAD
  std::string path;    // exact, or a prefix where it ends in "/*"
  HttpHandler handler;
};

/// Thread-safety: safe. Ownership: owns its threads and connections.
/// Errors: Create: INVALID_ARGUMENT (address), UNAVAILABLE (address in use; names it and the flag). What pages of
/// another origin ask but GET, HEAD and OPTIONS gets 403, as their browser says (Sec-Fetch-Site), unknown paths 404,
/// wrong methods 405, bodies over the limit 413, headers of more than 64 KiB or 256 fields 431, malformed requests 400.
/// A connection over max_connections closes the one that has been idle longest; where none is, it gets 503 with
/// Retry-After, and so do bodies that exceed max_held_body_bytes together. For /live, /health and /metrics there are 16
/// connections more, each for one request and for seconds: who asks how a server is that has no room is told. All are
/// JSON errors. A slow sender gets 408 and is disconnected. A client that closes the connection, or only its sending
/// half, before its response is complete counts as gone: OnDisconnect runs. So does one whose host answers nothing for
/// half a minute. Once all clients together leave max_all_unsent_bytes of their responses unread, whoever leaves more
/// than 64 KiB has its stream cut, and its next request waits until it has read. Everyone else is served as before.
class HttpServer {
 public:
  /// The callbacks are called by the server's threads and must not block.
  struct Options {
    std::string listen = {};  // host:port, port 0 picks one
    int64_t max_body_bytes = 1 << 20;
    int64_t max_held_body_bytes = 256 << 20;  // of all connections, until answered; beyond it 503; at least one body's
    int64_t max_connections = 1024;           // one more gets a 503, unless one is idle; see above
    int threads = 1;
    std::function<bool()> ready = {};                   // /health: 200 or 503
    std::function<std::string()> metrics = {};          // /metrics
    std::function<void(int status)> on_response = {};   // for each one that begins, refusals included
    std::function<void()> on_slow_reader_cut = {};      // a client was disconnected because it does not read
    int64_t max_unsent_bytes = 4 << 20;                 // of a stream; a client that leaves more unread is cut: at once
    absl::Duration burst_time = absl::Seconds(1);       // where it is 16 times as much, otherwise after this time
    int64_t max_all_unsent_bytes = 256 << 20;           // of all clients; beyond it each has 64 KiB; see above
    absl::Duration header_timeout = absl::Seconds(10);  // from a request's first byte to the end of its headers
    absl::Duration idle_timeout = absl::Seconds(120);   // from a response's last byte to the next request
    absl::Duration stall_timeout = absl::Seconds(30);   // of a body or a response that makes no progress
    absl::Duration spare_timeout = absl::Seconds(1);    // for all of a request beyond max_connections; see above
  };
  static absl::StatusOr<std::unique_ptr<HttpServer>> Create(Options options, std::vector<HttpRoute> routes);
  virtual ~HttpServer() = default;
  virtual std::string address() const = 0;  // host:port in use
  /// Closes the listener, lets responses under way end until `deadline` (of RealClock), ends the other connections,
  /// joins.
  virtual void Stop(absl::Time deadline) = 0;
};

}  // namespace swiftcache
