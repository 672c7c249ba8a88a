// SPDX-License-Identifier: Apache-2.0
// An HTTP client made of nothing but a socket, so that tests can send what no real client would.
//
//   RawHttpClient client(server->address());
//   client.Send("GET /live HTTP/1.1\r\nHost: a\r\n\r\n");
//   EXPECT_EQ(client.ReadResponse()->status, 200);
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <map>
#include <optional>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace swiftcache::fakes {

struct RawResponse {
  int status = 0;
  std::map<std::string, std::string> headers;  // names lower-case
  std::string body;                            // chunks joined
  bool complete = false;
};

/// Thread-safety: none. Errors: reads end after 20 s without a byte; what is missing is nullopt or not `complete`.
class RawHttpClient {
 public:
  explicit RawHttpClient(const std::string& address) {
    const std::pair<std::string, std::string> parts = absl::StrSplit(address, ':');
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(static_cast<uint16_t>(std::atoi(parts.second.c_str())));
    inet_pton(AF_INET, parts.first.c_str(), &to.sin_addr);
    fd_ = socket(AF_INET, SOCK_STREAM, 0);
    connected_ = connect(fd_, reinterpret_cast<sockaddr*>(&to), sizeof(to)) == 0;
    const timeval patience{20, 0};
    setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    setsockopt(fd_, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
  }
  ~RawHttpClient() { Close(); }
  RawHttpClient(const RawHttpClient&) = delete;
  RawHttpClient& operator=(const RawHttpClient&) = delete;

  bool connected() const { return connected_; }
  int fd() const { return fd_; }

  /// False when the server has cut the connection before everything was sent.
  bool Send(const std::string& bytes) {
    for (size_t sent = 0; sent < bytes.size();) {
      const ssize_t n = send(fd_, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
      if (n <= 0) return false;
      sent += static_cast<size_t>(n);
    }
    return true;
  }

  void SendRequest(const std::string& method, const std::string& path, const std::string& body = "",
                   const std::string& more_headers = "") {
    Send(absl::StrCat(method, " ", path, " HTTP/1.1\r\nHost: test\r\n", more_headers, "Content-Length: ", body.size(),
                      "\r\n\r\n", body));
  }

  /// The next response, whole; `has_body` is false for the answer to a HEAD. nullopt: closed before a status line.
  std::optional<RawResponse> ReadResponse(bool has_body = true) {
    std::optional<RawResponse> response = ReadHead();
    if (!response || !has_body || response->status == 100) return response;
    if (response->headers.count("transfer-encoding") > 0) {
      while (std::optional<std::string> chunk = ReadChunk()) {
        if (chunk->empty()) {
          response->complete = true;
          break;
        }
        response->body += *chunk;
      }
    } else {
      const size_t length = std::strtoul(response->headers["content-length"].c_str(), nullptr, 10);
      response->complete = Fill(length);
      response->body = Take(std::min(length, buffer_.size()));
    }
    return response;
  }

  std::optional<RawResponse> ReadHead() {
    const std::optional<std::string> head = ReadUntil("\r\n\r\n");
    if (!head) return std::nullopt;
    RawResponse response;
    const std::vector<std::string> lines = absl::StrSplit(*head, "\r\n");
    if (!absl::StartsWith(lines[0], "HTTP/1.1 ")) return std::nullopt;
    response.status = std::atoi(lines[0].c_str() + 9);
    for (size_t i = 1; i < lines.size(); ++i) {
      const std::pair<std::string, std::string> field = absl::StrSplit(lines[i], absl::MaxSplits(": ", 1));
      response.headers[absl::AsciiStrToLower(field.first)] = field.second;
    }
    return response;
  }

  /// The data of the next chunk; "" is the last one; nullopt: the connection ended.
  std::optional<std::string> ReadChunk() {
    const std::optional<std::string> size_line = ReadUntil("\r\n");
    if (!size_line) return std::nullopt;
    const size_t size = std::strtoul(size_line->c_str(), nullptr, 16);
    if (!Fill(size + 2)) return std::nullopt;
    std::string data = Take(size);
    Take(2);
    return data;
  }

  /// True when the server closes (or resets) before it sends anything more.
  bool ReadsEnd() { return buffer_.empty() && !Fill(1); }

  /// Everything up to the server's close.
  std::string ReadAll() {
    while (Fill(buffer_.size() + 1)) {
    }
    return Take(buffer_.size());
  }

  void StopSending() { shutdown(fd_, SHUT_WR); }

  void Close() {
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
  }

  /// Closes with a reset instead of a clean end.
  void Reset() {
    const linger now{1, 0};
    setsockopt(fd_, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
    Close();
  }

 private:
  bool Fill(size_t size) {
    char block[65536];
    while (buffer_.size() < size) {
      const ssize_t n = recv(fd_, block, sizeof(block), 0);
      if (n <= 0) return false;
      buffer_.append(block, static_cast<size_t>(n));
    }
    return true;
  }

  std::string Take(size_t size) {
    std::string taken = buffer_.substr(0, size);
    buffer_.erase(0, size);
    return taken;
  }

  std::optional<std::string> ReadUntil(const std::string& end) {
    size_t at;
    while ((at = buffer_.find(end)) == std::string::npos) {
      if (!Fill(buffer_.size() + 1)) return std::nullopt;
    }
    std::string taken = Take(at);
    Take(end.size());
    return taken;
  }

  int fd_ = -1;
  bool connected_ = false;
  std::string buffer_;
};

}  // namespace swiftcache::fakes
