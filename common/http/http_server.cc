// SPDX-License-Identifier: Apache-2.0
#include "common/http/http_server.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <exception>
#include <thread>
#include <unordered_map>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/base/byte_budget.h"
#include "common/base/clock.h"
#include "common/base/status_macros.h"
#include "common/http/connection.h"
#include "common/http/router.h"
#include "common/log/log.h"
#include "common/sync/timed_mutex.h"

namespace swiftcache {
namespace {

namespace net = boost::asio;
using net::ip::tcp;
using ErrorCode = boost::system::error_code;

constexpr absl::Duration kAcceptRetry = absl::Milliseconds(100);  // after "too many open files"
constexpr size_t kMaxSpare = 16;    // connections at once, beyond max_connections, for /live, /health and /metrics
constexpr size_t kMaxRefused = 64;  // connections at once that are being told that there are too many
// A client whose host has vanished sends no end. The kernel asks one that says nothing whether it is there, after some
// seconds and then again, as often as below; no answer ends the connection, and the request that it waits for. While
// bytes are on their way it asks nothing: then what ends it is that they are not taken for as long.
constexpr int kKeepIdleSeconds = 20, kKeepIntervalSeconds = 5, kKeepProbes = 3;
constexpr int kUntakenMilliseconds = 1000 * (kKeepIdleSeconds + kKeepProbes * kKeepIntervalSeconds);

void SetOptions(tcp::socket& socket) {
  ErrorCode ignored;
  socket.set_option(tcp::no_delay(true), ignored);
  socket.set_option(net::socket_base::keep_alive(true), ignored);
  const auto set = [&socket](int name, int value) {
    setsockopt(socket.native_handle(), IPPROTO_TCP, name, &value, sizeof(value));
  };
  set(TCP_KEEPIDLE, kKeepIdleSeconds);
  set(TCP_KEEPINTVL, kKeepIntervalSeconds);
  set(TCP_KEEPCNT, kKeepProbes);
  set(TCP_USER_TIMEOUT, kUntakenMilliseconds);
}

/// "127.0.0.1:80", "localhost:80", "[::1]:80" -> where to listen. Of a name's addresses it is one of IPv4, if there is
/// any: clients that try both find it, those of IPv4 alone would not find one of IPv6.
absl::StatusOr<tcp::endpoint> Resolve(net::io_context& context, const std::string& listen) {
  const size_t colon = listen.rfind(':');
  int port = 0;
  if (colon == std::string::npos || !absl::SimpleAtoi(listen.substr(colon + 1), &port) || port < 0 || port > 65535) {
    return absl::InvalidArgumentError(
        absl::StrCat("--http_listen=", listen, ": wants host:port with a port of 0 to 65535, e.g. 127.0.0.1:0"));
  }
  std::string host = listen.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  ErrorCode error;
  const auto found = tcp::resolver(context).resolve(host, std::to_string(port), error);
  if (error == net::error::host_not_found_try_again) {
    return absl::UnavailableError(absl::StrCat("--http_listen=", listen, ": host '", host, "' is not known now (",
                                               error.message(), "); is a name server there?"));
  }
  if (error || found.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("--http_listen=", listen, ": host '", host, "' has no address (",
                                                   error.message(), "); give one of this machine's addresses"));
  }
  const auto v4 =
      std::find_if(found.begin(), found.end(), [](const auto& one) { return one.endpoint().address().is_v4(); });
  return (v4 == found.end() ? found.begin() : v4)->endpoint();
}

absl::Status ListenError(const std::string& listen, ErrorCode error) {
  if (error == net::error::address_in_use) {
    return absl::UnavailableError(absl::StrCat("--http_listen=", listen,
                                               ": the address is in use by another process; choose another port, or "
                                               "port 0 for any that is free"));
  }
  if (error == boost::system::errc::address_not_available) {  // a network that is not up yet, or an address that moves
    return absl::UnavailableError(
        absl::StrCat("--http_listen=", listen, ": this machine has no such address now; give one of its addresses"));
  }
  return absl::InvalidArgumentError(absl::StrCat("--http_listen=", listen, ": cannot listen there (", error.message(),
                                                 "); give one of this machine's addresses and a port it may use"));
}

absl::Status Listen(tcp::acceptor& acceptor, const tcp::endpoint& endpoint, const std::string& listen) {
  ErrorCode error;
  acceptor.open(endpoint.protocol(), error);
  if (!error) acceptor.set_option(net::socket_base::reuse_address(true), error);
  if (!error) acceptor.bind(endpoint, error);
  if (!error) acceptor.listen(net::socket_base::max_listen_connections, error);
  return error ? ListenError(listen, error) : absl::OkStatus();
}

class ServerImpl final : public HttpServer {
 public:
  ServerImpl(Options options, std::vector<HttpRoute> routes)
      : options_(std::move(options)),
        router_(options_, std::move(routes)),
        bodies_(std::max(options_.max_held_body_bytes, options_.max_body_bytes)),
        unsent_(std::make_shared<ByteBudget>(options_.max_all_unsent_bytes)) {}
  ~ServerImpl() override { Stop(absl::InfinitePast()); }

  absl::Status Start();
  std::string address() const override { return address_; }
  void Stop(absl::Time deadline) override;

 private:
  using ConnectionMap = std::unordered_map<http::Connection*, std::shared_ptr<http::Connection>>;

  void Accept();
  void OnAccept(ErrorCode error, tcp::socket socket);
  void Welcome(tcp::socket socket) ABSL_LOCKS_EXCLUDED(mutex_);
  std::shared_ptr<http::Connection> TakeIdle() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Forget(http::Connection* connection) ABSL_LOCKS_EXCLUDED(mutex_);
  void Run();
  std::vector<std::shared_ptr<http::Connection>> Connections() ABSL_LOCKS_EXCLUDED(mutex_);
  bool EmptyLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return served_.empty() && spare_.empty() && refused_.empty();
  }

  const Options options_;
  const http::Router router_;
  ByteBudget bodies_;
  const std::shared_ptr<ByteBudget> unsent_;  // shared: see UnsentBytes
  // Shared: a response may outlive the server, and its socket needs the context until then.
  const std::shared_ptr<net::io_context> context_ = std::make_shared<net::io_context>();
  net::executor_work_guard<net::io_context::executor_type> work_{context_->get_executor()};
  const net::strand<net::io_context::executor_type> accept_strand_ = net::make_strand(*context_);
  tcp::acceptor acceptor_{accept_strand_};
  net::steady_timer accept_retry_{accept_strand_};
  std::string address_;
  std::vector<std::thread> threads_;
  TimedMutex mutex_;
  ConnectionMap served_ ABSL_GUARDED_BY(mutex_);
  ConnectionMap spare_ ABSL_GUARDED_BY(mutex_);
  ConnectionMap refused_ ABSL_GUARDED_BY(mutex_);  // and those that make room: they end by themselves
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
};

absl::Status ServerImpl::Start() {
  ASSIGN_OR_RETURN(const tcp::endpoint endpoint, Resolve(*context_, options_.listen));
  RETURN_IF_ERROR(Listen(acceptor_, endpoint, options_.listen));
  const std::string host = options_.listen.substr(0, options_.listen.rfind(':'));
  address_ = absl::StrCat(host, ":", acceptor_.local_endpoint().port());
  net::post(accept_strand_, [this] { Accept(); });
  for (int i = 0; i < options_.threads; ++i) threads_.emplace_back([this] { Run(); });
  return absl::OkStatus();
}

void ServerImpl::Run() {
  for (;;) {
    try {
      context_->run();
      return;
    } catch (const std::exception& error) {
      LOG(ERROR) << "http: " << error.what();
    }
  }
}

void ServerImpl::Accept() {
  acceptor_.async_accept(net::make_strand(*context_),
                         [this](ErrorCode error, tcp::socket socket) { OnAccept(error, std::move(socket)); });
}

void ServerImpl::OnAccept(ErrorCode error, tcp::socket socket) {
  if (!acceptor_.is_open()) return;
  if (error) {
    LOG_EVERY_T(WARNING, 10) << "http on " << address_ << ": accept: " << error.message();
    accept_retry_.expires_after(absl::ToChronoNanoseconds(kAcceptRetry));
    accept_retry_.async_wait([this](ErrorCode cancelled) {
      if (!cancelled && acceptor_.is_open()) Accept();
    });
    return;
  }
  SetOptions(socket);
  Welcome(std::move(socket));
  Accept();
}

// Beyond max_connections the one that has been idle longest makes room. Where none is idle a client gets a 503, but for who
// asks how the server is, and beyond kMaxRefused such clients its connection is just closed.
void ServerImpl::Welcome(tcp::socket socket) {
  auto connection = std::make_shared<http::Connection>(context_, std::move(socket), options_, router_, bodies_, unsent_,
                                                       [this](http::Connection* closed) { Forget(closed); });
  std::shared_ptr<http::Connection> leaves;
  bool full, spare, just_closes;
  {
    TimedMutexLock lock(&mutex_);
    if (stopping_) return;
    full = static_cast<int64_t>(served_.size()) >= options_.max_connections;
    if (full && refused_.size() < kMaxRefused) leaves = TakeIdle();
    full = full && leaves == nullptr;
    spare = full && spare_.size() < kMaxSpare;
    just_closes = full && !spare && refused_.size() >= kMaxRefused;
    if (!just_closes) (spare ? spare_ : full ? refused_ : served_).emplace(connection.get(), connection);
  }
  if (leaves != nullptr) leaves->CloseWhenIdle();
  if (!full) return connection->Start();
  LOG_EVERY_T(WARNING, 10) << "http on " << address_ << ": all " << options_.max_connections << " connections taken";
  if (just_closes) return;
  const std::string why =
      absl::StrCat("all ", options_.max_connections, " connections of this server are taken: try again later");
  spare ? connection->StartSpare(why) : connection->StartRefusing(503, why);
}

// Null: none is idle.
std::shared_ptr<http::Connection> ServerImpl::TakeIdle() {
  const auto longest = std::ranges::min_element(served_, {}, [](const auto& c) { return c.second->idle_since(); });
  if (longest == served_.end() || longest->second->idle_since() == http::Connection::Clock::time_point::max()) {
    return nullptr;
  }
  std::shared_ptr<http::Connection> idle = longest->second;
  refused_.insert(served_.extract(longest));
  return idle;
}

void ServerImpl::Forget(http::Connection* connection) {
  std::shared_ptr<http::Connection> removed;  // destroyed after the lock
  TimedMutexLock lock(&mutex_);
  for (ConnectionMap* map : {&served_, &spare_, &refused_}) {
    if (auto it = map->find(connection); it != map->end()) {
      removed = std::move(it->second);
      map->erase(it);
    }
  }
}

std::vector<std::shared_ptr<http::Connection>> ServerImpl::Connections() {
  std::vector<std::shared_ptr<http::Connection>> all;
  TimedMutexLock lock(&mutex_);
  for (const ConnectionMap* map : {&served_, &spare_, &refused_}) {
    for (const auto& [key, connection] : *map) all.push_back(connection);
  }
  return all;
}

void ServerImpl::Stop(absl::Time deadline) {
  if (threads_.empty()) return;
  {
    TimedMutexLock lock(&mutex_);
    if (std::exchange(stopping_, true)) return;
  }
  net::post(accept_strand_, [this] {
    ErrorCode ignored;
    acceptor_.close(ignored);
    accept_retry_.cancel(ignored);
  });
  for (const auto& connection : Connections()) connection->CloseWhenIdle();
  {
    TimedMutexLock lock(&mutex_);
    mutex_.AwaitWithTimeout(absl::Condition(this, &ServerImpl::EmptyLocked), deadline - RealClock().Now());
  }
  for (const auto& connection : Connections()) connection->Cut();
  work_.reset();
  for (std::thread& thread : threads_) thread.join();
}

}  // namespace

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Create(Options options, std::vector<HttpRoute> routes) {
  if (options.threads < 1 || options.threads > 256) {
    return absl::InvalidArgumentError(absl::StrCat("http threads: wants 1 to 256, found ", options.threads));
  }
  if (options.max_connections < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("http max_connections: wants at least 1, found ", options.max_connections));
  }
  auto server = std::make_unique<ServerImpl>(std::move(options), std::move(routes));
  RETURN_IF_ERROR(server->Start());
  return server;
}

}  // namespace swiftcache
