// SPDX-License-Identifier: Apache-2.0
// A port for servers that follow each other there: nobody else gets it while none of them listens.
//
//   const HeldPort port;
//   { auto first = *RpcServer::Create({.listen = port.address()}, {&service}); }
//   auto second = *RpcServer::Create({.listen = port.address()}, {&service});
#pragma once

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>

#include "absl/strings/str_cat.h"

namespace swiftcache::fakes {

/// Of the loopback interface. It is bound and never listens, so that who reuses addresses, as gRPC does, may listen there,
/// and the kernel gives it to nobody who asks for any port.
class HeldPort {
 public:
  HeldPort() : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const int one = 1;
    EXPECT_EQ(setsockopt(fd_, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one), 0);
    sockaddr_in where{.sin_family = AF_INET, .sin_addr = {.s_addr = htonl(INADDR_LOOPBACK)}};
    socklen_t size = sizeof where;
    EXPECT_EQ(bind(fd_, reinterpret_cast<const sockaddr*>(&where), size), 0);
    EXPECT_EQ(getsockname(fd_, reinterpret_cast<sockaddr*>(&where), &size), 0);
    address_ = absl::StrCat("127.0.0.1:", ntohs(where.sin_port));
  }
  HeldPort(const HeldPort&) = delete;
  HeldPort& operator=(const HeldPort&) = delete;
  ~HeldPort() { close(fd_); }

  const std::string& address() const { return address_; }

 private:
  const int fd_;
  std::string address_;
};

}  // namespace swiftcache::fakes
