// SPDX-License-Identifier: Apache-2.0
#include "common/http/connection.h"

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/strand.hpp>
#include <boost/beast/http/error.hpp>
#include <exception>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/http/to_request.h"
#include "common/http/wire_format.h"
#include "common/log/log.h"

namespace swiftcache::http {
namespace {

namespace net = boost::asio;
namespace beast_http = boost::beast::http;

constexpr size_t kMaxWaiting = 8;  // pipelined requests
constexpr uint32_t kMaxHeaderBytes = 64 << 10;
constexpr int64_t kMaxHeaderFields = 256;
constexpr int64_t kFieldBytes = 100;          // what a header takes of memory, however short it is
constexpr int64_t kBodyStepBytes = 64 << 10;  // what a long body must bring within each stall_timeout
constexpr char kRetryAfterSeconds[] = "1";
constexpr absl::Duration kLinger = absl::Seconds(2);

/// "127.0.0.1:50123", "[::1]:50123"; "" if the client has gone already.
std::string ClientOf(const Connection::Socket& socket) {
  boost::system::error_code error;
  const net::ip::tcp::endpoint end = socket.remote_endpoint(error);
  if (error) return "";
  const std::string host = end.address().to_string();
  return absl::StrCat(end.address().is_v6() ? absl::StrCat("[", host, "]") : host, ":", end.port());
}

}  // namespace

Connection::Connection(std::shared_ptr<net::io_context> context, Socket socket, const HttpServer::Options& options,
                       const Router& router, ByteBudget& bodies, std::shared_ptr<ByteBudget> unsent,
                       std::function<void(Connection*)> on_closed)
    : context_(std::move(context)),
      options_(options),
      router_(router),
      bodies_(bodies),
      on_closed_(std::move(on_closed)),
      socket_(std::move(socket)),
      client_(ClientOf(socket_)),
      read_timer_(socket_.get_executor()),
      write_timer_(socket_.get_executor()),
      unsent_({.max_bytes = options.max_unsent_bytes, .burst_time = options.burst_time}, std::move(unsent)) {}

// Posting under the lock makes sure that nothing is posted after Close, so that the server's threads can run out.
bool Connection::Post(std::function<void()> task) {
  absl::MutexLock lock(&mutex_);
  if (open_) net::post(socket_.get_executor(), std::move(task));
  return open_;
}

void Connection::Start() {
  Post([self = shared_from_this()] {
    self->WatchReading();
    self->ReadMore();
  });
}

void Connection::StartSpare(std::string message) {
  spare_refusal_ = std::move(message);
  Start();
}

void Connection::StartRefusing(int status, std::string message) {
  Post([self = shared_from_this(), status, message = std::move(message)]() mutable {
    self->Refuse(status, std::move(message));
    self->Serve();
  });
}

void Connection::CloseWhenIdle() {
  Post([self = shared_from_this()] {
    self->closing_ = self->discarding_ = true;
    self->end_when_flushed_ = self->end_when_flushed_ || !self->busy_;
    if (!self->busy_ && !self->writing_) self->Close();
  });
}

void Connection::Cut() {
  Post([self = shared_from_this()] { self->Close(); });
}

void Connection::CutSlowReader() {
  Post([self = shared_from_this()] { self->CloseOnSlowReader(); });
}

bool Connection::Queue(std::string bytes, Part part) {
  const auto size = static_cast<int64_t>(bytes.size());
  unsent_.Add(size);
  const bool open = Post([self = shared_from_this(), bytes = std::move(bytes), part = std::move(part)]() mutable {
    self->OnQueued(std::move(bytes), std::move(part));
  });
  if (!open) unsent_.Remove(size);
  return open;
}

// ---- reading

// As much as one request may be waits behind the response under way, including what has been read of the next request.
bool Connection::Full() const {
  if (waiting_.empty()) return false;
  const int64_t begun_bytes = parser_ ? static_cast<int64_t>(parser_->get().body().size()) : 0;
  return waiting_.size() >= kMaxWaiting || waiting_bytes_ + begun_bytes >= options_.max_body_bytes ||
         waiting_header_bytes_ + header_bytes_ >= kMaxHeaderBytes;
}

void Connection::ReadMore() {
  if (closed_ || reading_ || peer_closed_ || Full()) return;
  reading_ = true;
  socket_.async_read_some(net::buffer(block_),
                          [self = shared_from_this()](ErrorCode error, size_t size) { self->OnRead(error, size); });
}

void Connection::OnRead(ErrorCode error, size_t size) {
  reading_ = false;
  if (closed_) return;
  if (error) return OnReadEnd(error == net::error::eof);
  idle_since_ = Clock::time_point::max();
  buffer_.commit(net::buffer_copy(buffer_.prepare(size), net::buffer(block_.data(), size)));
  Parse();
  ReadMore();
}

void Connection::OnReadEnd(bool clean) {
  peer_closed_ = true;
  if (!clean || busy_ || (!writing_ && outgoing_.empty())) return Close();
  discarding_ = end_when_flushed_ = true;  // a client that only stopped sending still gets its complete responses
}

void Connection::Parse() {
  while (!closed_ && !discarding_ && buffer_.size() > 0 && !Full() && ParseSome()) {
  }
  if (discarding_) buffer_.clear();
  Serve();
}

// One step of the parser; false: it wants more bytes, or nothing more will be parsed.
bool Connection::ParseSome() {
  if (!parser_) {
    for (; buffer_.size() > 0; buffer_.consume(1)) {  // empty lines before a request are allowed
      const char first = *static_cast<const char*>(buffer_.data().data());
      if (first != '\r' && first != '\n') break;
    }
    if (buffer_.size() == 0) return false;
    parser_.emplace();
    parser_->eager(true);
    parser_->header_limit(kMaxHeaderBytes);
    parser_->body_limit(static_cast<uint64_t>(options_.max_body_bytes));
    begun_ = ByteShare(bodies_);
    continue_sent_ = false;
    body_bytes_ = 0;
  }
  ErrorCode error;
  const bool in_body = parser_->is_header_done();
  const size_t used = parser_->put(buffer_.data(), error);
  buffer_.consume(used);
  if (in_body) body_bytes_ += static_cast<int64_t>(used);
  if (used == 0 && buffer_.size() > kMaxHeaderBytes) error = beast_http::error::header_limit;  // a chunk's, or trailers
  if (error && error != beast_http::error::need_more) {
    RefuseMalformed(error);
    return false;
  }
  const HeaderSize headers = SizeOfHeaders(parser_->get());  // the parser's limit is on what it has not taken yet
  header_bytes_ = headers.bytes + kFieldBytes * headers.fields;
  if (headers.fields > kMaxHeaderFields) {
    Refuse(431, absl::StrCat("the headers have more than ", kMaxHeaderFields, " fields, the limit"));
    return false;
  }
  if (headers.bytes > kMaxHeaderBytes) {
    RefuseMalformed(beast_http::error::header_limit);
    return false;
  }
  if (!spare_refusal_.empty() && parser_->is_header_done() && !ForSpare()) {
    Refuse(503, spare_refusal_);
    return false;
  }
  if (!HoldBody()) {
    Refuse(503, absl::StrCat("the server holds as many bytes of request bodies as it may (", bodies_.limit_bytes(),
                             "): try again later"));
    return false;
  }
  if (parser_->is_done()) {
    TakeRequest();
    return true;
  }
  ContinueIfExpected();
  return used > 0;
}

// Counts the bytes received, not those announced: a client uses up the shared budget only by sending.
bool Connection::HoldBody() { return begun_.Grow(static_cast<int64_t>(parser_->get().body().size()) - begun_.bytes()); }

bool Connection::ForSpare() const { return Router::IsBuiltIn(ToRequestLine(parser_->get())); }

void Connection::ContinueIfExpected() {
  if (!parser_ || !parser_->is_header_done() || busy_ || !waiting_.empty() || continue_sent_) return;
  continue_sent_ = true;
  if (!boost::beast::iequals(parser_->get()[beast_http::field::expect], "100-continue")) return;
  const std::string bytes = FormatHead(100, {});
  unsent_.Add(static_cast<int64_t>(bytes.size()));
  outgoing_ += bytes;
  Flush();
}

void Connection::TakeRequest() {
  auto message = parser_->release();
  parser_.reset();
  Waiting next;
  next.form = {.head_only = message.method() == beast_http::verb::head,
               .chunked = message.version() >= 11,
               .keep_alive = message.version() >= 11 && message.keep_alive() && spare_refusal_.empty()};
  discarding_ = !next.form.keep_alive;
  next.request = ToRequest(std::move(message));
  next.request.client = client_;
  next.share = std::move(begun_);
  next.header_bytes = std::exchange(header_bytes_, 0);
  waiting_bytes_ += static_cast<int64_t>(next.request.body.size());
  waiting_header_bytes_ += next.header_bytes;
  waiting_.push_back(std::move(next));
}

void Connection::Refuse(int status, std::string message) {
  Waiting refusal;
  refusal.form.keep_alive = false;
  refusal.refusal_status = status;
  refusal.refusal = std::move(message);
  parser_.reset();
  header_bytes_ = 0;
  begun_.Reset();
  discarding_ = true;
  waiting_.push_back(std::move(refusal));
}

void Connection::RefuseMalformed(ErrorCode error) {
  if (error == beast_http::error::body_limit) {
    return Refuse(413, absl::StrCat("the body is larger than the limit of ", options_.max_body_bytes, " bytes"));
  }
  if (error == beast_http::error::header_limit) {
    return Refuse(431, absl::StrCat("the headers are larger than the limit of ", kMaxHeaderBytes, " bytes"));
  }
  Refuse(400, absl::StrCat("not an HTTP/1.1 request: ", error.message()));
}

// ---- answering

void Connection::Serve() {
  if (!closed_ && !busy_ && !closing_ && !waiting_.empty() && !unsent_.Behind()) {
    Waiting next = std::move(waiting_.front());
    waiting_.pop_front();
    waiting_bytes_ -= static_cast<int64_t>(next.request.body.size());
    waiting_header_bytes_ -= next.header_bytes;
    busy_ = true;
    keep_alive_ = next.form.keep_alive;
    answering_ = std::move(next.share);
    auto response = std::make_shared<Response>(shared_from_this(), next.form);
    current_ = response;
    if (next.refusal_status != 0) {
      HttpHeaders headers;
      if (next.refusal_status == 503) headers = {{"Retry-After", kRetryAfterSeconds}};
      response->Send(next.refusal_status, "application/json", FormatError(next.refusal_status, next.refusal), headers,
                     {});
    } else {
      router_.Handle(std::move(next.request), std::move(response));
    }
  }
  WatchReading();
}

void Connection::OnQueued(std::string bytes, Part part) {
  if (closed_) return unsent_.Remove(static_cast<int64_t>(bytes.size()));
  if (part.status != 0 && options_.on_response) options_.on_response(part.status);
  if (outgoing_.empty()) {
    outgoing_ = std::move(bytes);
  } else {
    outgoing_ += bytes;
  }
  if (part.held) held_.push_back(std::move(part.held));
  if (part.last) {
    busy_ = false;
    answering_.Reset();
    current_.reset();
    end_when_flushed_ = end_when_flushed_ || !keep_alive_ || closing_;
  }
  Flush();
  if (!part.last || closed_ || end_when_flushed_) return;
  ContinueIfExpected();
  Parse();
  ReadMore();
}

// ---- writing

void Connection::Flush() {
  if (closed_ || writing_) return;
  if (outgoing_.empty()) return OnFlushed();
  sending_ = std::exchange(outgoing_, {});
  writing_ = true;
  WriteSome();
}

void Connection::WriteSome() {
  write_by_ = Clock::now() + absl::ToChronoNanoseconds(options_.stall_timeout);
  if (!std::exchange(watches_writes_, true)) ArmWriteTimer(options_.stall_timeout);
  socket_.async_write_some(net::buffer(sending_.data() + sent_, sending_.size() - sent_),
                           [self = shared_from_this()](ErrorCode error, size_t size) { self->OnWritten(error, size); });
}

void Connection::OnWritten(ErrorCode error, size_t size) {
  if (error) Close();
  if (closed_) return std::string().swap(sending_);  // who makes the response may hold this object for long
  sent_ += size;
  unsent_.Remove(static_cast<int64_t>(size));
  if (sent_ < sending_.size()) return WriteSome();
  writing_ = false;
  sent_ = 0;
  std::string().swap(sending_);  // assigned, it would keep the memory of a large response while the client is idle
  Flush();
}

void Connection::OnFlushed() {
  held_.clear();
  if (end_when_flushed_) return Linger();
  if (busy_) return;
  Serve();  // a pipelined request that waited for the client to read
  ReadMore();
}

// Closing with unread bytes would send a reset that can overtake the response, so the rest is read and dropped first.
void Connection::Linger() {
  if (peer_closed_) return Close();
  ErrorCode ignored;
  socket_.shutdown(Socket::shutdown_send, ignored);
  discarding_ = true;
  waiting_.clear();
  waiting_bytes_ = waiting_header_bytes_ = 0;
  phase_ = ReadPhase::kNone;
  Arm(write_timer_, kLinger, &Connection::CloseOnTimeout);
  ReadMore();
}

// ---- time and the end

// Sets the timeout for what is being read. While a response is under way, or on its way to a slow reader, the client
// may send nothing.
void Connection::WatchReading() {
  if (closed_ || end_when_flushed_) return;
  const ReadPhase before = phase_;
  if (busy_ || !waiting_.empty()) {
    phase_ = ReadPhase::kNone;
  } else if (!parser_) {
    phase_ = writing_ ? ReadPhase::kNone : ReadPhase::kIdle;
  } else {
    phase_ = parser_->is_header_done() ? ReadPhase::kBody : ReadPhase::kHeader;
  }
  if (phase_ == ReadPhase::kIdle && idle_since() == Clock::time_point::max()) idle_since_ = Clock::now();
  if (!spare_refusal_.empty()) return WatchSpare(before);
  if (phase_ == ReadPhase::kBody) {
    if (before != phase_) body_bytes_ = 0;
    if (before == phase_ && body_bytes_ < kBodyStepBytes) return;
    body_bytes_ = 0;
    return ArmReadTimer(options_.stall_timeout);
  }
  if (before == phase_) return;
  if (phase_ == ReadPhase::kNone) read_timer_.expires_at(Clock::time_point::max());
  if (phase_ == ReadPhase::kIdle) ArmReadTimer(options_.idle_timeout);
  if (phase_ == ReadPhase::kHeader) ArmReadTimer(options_.header_timeout);
}

// One time for the whole request and one for its answer, however they move: others wait for this connection.
void Connection::WatchSpare(ReadPhase before) {
  if ((before == ReadPhase::kNone) == (phase_ == ReadPhase::kNone)) return;
  ArmReadTimer(phase_ == ReadPhase::kNone ? options_.spare_timeout + kLinger : options_.spare_timeout);
}

void Connection::Arm(net::steady_timer& timer, absl::Duration timeout, void (Connection::*on_timeout)()) {
  timer.expires_after(absl::ToChronoNanoseconds(timeout));
  timer.async_wait([self = shared_from_this(), &timer, on_timeout](ErrorCode error) {
    const bool expired = timer.expiry() <= net::steady_timer::clock_type::now();
    if (!error && expired && !self->closed_) (self.get()->*on_timeout)();
  });
}

void Connection::OnReadTimeout() {
  if (phase_ == ReadPhase::kNone) return spare_refusal_.empty() ? void() : CloseOnTimeout();
  if (!spare_refusal_.empty()) {
    Refuse(503, spare_refusal_);
  } else if (phase_ == ReadPhase::kIdle) {
    return Close();
  } else {
    Refuse(408, phase_ == ReadPhase::kHeader ? "the headers came too slowly" : "the body came too slowly");
  }
  buffer_.clear();
  Serve();
}

// One wait watches all writes and rests where it finds none: a chunk that sets or cancels one wakes another thread.
void Connection::OnWriteTimeout() {
  const Clock::time_point now = Clock::now();
  watches_writes_ = writing_ && write_by_ > now;
  if (watches_writes_) return ArmWriteTimer(absl::FromChrono(write_by_ - now));
  if (writing_) CloseOnSlowReader();
}

// The end of Linger, or of a spare connection's time: of bytes that the client did not take, if there are some.
void Connection::CloseOnTimeout() { writing_ ? CloseOnSlowReader() : Close(); }

void Connection::CloseOnSlowReader() {
  if (!closed_ && options_.on_slow_reader_cut) options_.on_slow_reader_cut();
  Close();
}

void Connection::Close() {
  if (closed_) return;
  closed_ = true;
  {
    absl::MutexLock lock(&mutex_);
    open_ = false;
  }
  ErrorCode ignored;
  read_timer_.cancel(ignored);
  write_timer_.cancel(ignored);
  socket_.close(ignored);
  waiting_.clear();
  begun_.Reset();
  answering_.Reset();
  unsent_.Remove(static_cast<int64_t>(outgoing_.size() + sending_.size() - sent_));
  std::string().swap(outgoing_);
  held_.clear();
  if (std::shared_ptr<Response> response = current_.lock()) {
    try {
      response->ClientGone();
    } catch (const std::exception& error) {
      LOG(ERROR) << "a handler's OnDisconnect threw: " << error.what();
    }
  }
  on_closed_(this);
}

}  // namespace swiftcache::http
