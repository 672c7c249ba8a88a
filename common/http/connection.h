// SPDX-License-Identifier: Apache-2.0
// One client's connection: reads requests as they come, has them handled one after another, writes the responses in
// order.
//
//   auto connection =
//       std::make_shared<Connection>(context, std::move(socket), options, router, bodies, unsent, on_closed);
//   connection->Start();
#pragma once

#include <array>
#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/base/byte_budget.h"
#include "common/http/http_server.h"
#include "common/http/response.h"
#include "common/http/router.h"
#include "common/http/unsent_bytes.h"

namespace swiftcache::http {

/// A read is always pending, so that a client that goes away is noticed while its response is being made. Exception:
/// while the pipelined requests behind that response are as large as a connection may hold (one request's headers or
/// max_body_bytes), nothing is read. Thread-safety: public methods are safe; everything else runs on the socket's
/// strand. Ownership: kept alive by its pending operations and by unfinished responses. Errors: none are returned; any
/// error ends this connection only.
class Connection final : public ResponseOutlet, public std::enable_shared_from_this<Connection> {
 public:
  using Socket = boost::asio::ip::tcp::socket;
  using Clock = std::chrono::steady_clock;
  /// `options`, `router`, `bodies` must live until `on_closed` was called, which happens once.
  Connection(std::shared_ptr<boost::asio::io_context> context, Socket socket, const HttpServer::Options& options,
             const Router& router, ByteBudget& bodies, std::shared_ptr<ByteBudget> unsent,
             std::function<void(Connection*)> on_closed);

  void Start();
  /// In place of Start: answers one request if it is a built-in one (Router::IsBuiltIn); every other, and a client
  /// whose request is not there within spare_timeout, is refused with 503 and `message`. Who has not taken the answer
  /// within two seconds more than that is cut.
  void StartSpare(std::string message);
  /// In place of Start: says why the client is not served, and ends.
  void StartRefusing(int status, std::string message);
  /// Closes the connection when the response under way is complete; at once if there is none.
  void CloseWhenIdle();
  /// No request is under way, nor coming; since when. Clock::time_point::max(): it is not idle.
  Clock::time_point idle_since() const { return idle_since_; }

  bool Queue(std::string bytes, Part part) override ABSL_LOCKS_EXCLUDED(mutex_);
  bool HasRoom(int64_t bytes) override { return unsent_.HasRoom(bytes); }
  void Cut() override;
  void CutSlowReader() override;

 private:
  using ErrorCode = boost::system::error_code;
  using Parser = boost::beast::http::request_parser<boost::beast::http::string_body>;
  struct Waiting {
    HttpRequest request;
    ResponseForm form;
    ByteShare share;
    int64_t header_bytes = 0;
    int refusal_status = 0;  // not 0: answered by the connection itself
    std::string refusal;
  };
  enum class ReadPhase { kNone, kIdle, kHeader, kBody };

  bool Post(std::function<void()> task) ABSL_LOCKS_EXCLUDED(mutex_);
  // Reading.
  void ReadMore();
  void OnRead(ErrorCode error, size_t size);
  void OnReadEnd(bool clean);
  void Parse();
  bool ParseSome();
  bool Full() const;
  bool HoldBody();
  bool ForSpare() const;
  void TakeRequest();
  void Refuse(int status, std::string message);
  void RefuseMalformed(ErrorCode error);
  void ContinueIfExpected();
  // Answering.
  void Serve();
  void OnQueued(std::string bytes, Part part);
  // Writing.
  void Flush();
  void WriteSome();
  void OnWritten(ErrorCode error, size_t size);
  void OnFlushed();
  void Linger();
  // Time and the end.
  void WatchReading();
  void WatchSpare(ReadPhase before);
  void ArmReadTimer(absl::Duration timeout) { Arm(read_timer_, timeout, &Connection::OnReadTimeout); }
  void ArmWriteTimer(absl::Duration timeout) { Arm(write_timer_, timeout, &Connection::OnWriteTimeout); }
  void Arm(boost::asio::steady_timer& timer, absl::Duration timeout, void (Connection::*on_timeout)());
  void OnReadTimeout();
  void OnWriteTimeout();
  void CloseOnTimeout();
  void CloseOnSlowReader();
  void Close();

  const std::shared_ptr<boost::asio::io_context> context_;  // the socket's; also of responses that outlive the server
  const HttpServer::Options& options_;
  const Router& router_;
  ByteBudget& bodies_;
  const std::function<void(Connection*)> on_closed_;
  Socket socket_;
  const std::string client_;
  boost::asio::steady_timer read_timer_, write_timer_;
  std::string spare_refusal_;  // of a spare connection, else empty

  mutable absl::Mutex mutex_;
  bool open_ ABSL_GUARDED_BY(mutex_) = true;  // after it is false nothing is posted any more
  UnsentBytes unsent_;  // has all that it needs itself: responses use it even after the server has gone

  std::array<char, 16 << 10> block_;  // the outstanding read's own: parsing moves what `buffer_` holds
  boost::beast::flat_buffer buffer_;
  std::optional<Parser> parser_;
  ByteShare begun_;           // of the body that is coming
  int64_t header_bytes_ = 0;  // what has come of the request's headers takes of memory
  ReadPhase phase_ = ReadPhase::kNone;
  std::atomic<Clock::time_point> idle_since_{Clock::time_point::max()};
  int64_t body_bytes_ = 0;
  bool reading_ = false;
  bool discarding_ = false;  // no further request is taken from this client
  bool continue_sent_ = false;

  std::deque<Waiting> waiting_;
  int64_t waiting_bytes_ = 0;  // of their bodies
  int64_t waiting_header_bytes_ = 0;
  std::weak_ptr<Response> current_;
  ByteShare answering_;  // of the request under way, which its handler may keep
  bool busy_ = false;    // a response is under way
  bool keep_alive_ = true;
  bool closing_ = false;

  std::string outgoing_, sending_;
  std::vector<std::shared_ptr<void>> held_;  // until both are empty
  size_t sent_ = 0;
  bool writing_ = false;
  bool watches_writes_ = false;   // until OnWriteTimeout
  Clock::time_point write_by_{};  // the client has to take something of the write under way
  bool end_when_flushed_ = false;
  bool peer_closed_ = false;
  bool closed_ = false;
};

}  // namespace swiftcache::http
