// SPDX-License-Identifier: Apache-2.0
#include "common/rpc/listener.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/log/log.h"

namespace swiftcache {
namespace {

constexpr int kAcceptRetryMilliseconds = 100;
constexpr int64_t kReservedDescriptors = 64;
constexpr int kTriesOfAPort = 16;

const char* RemedyOf(int why) {
  switch (why) {
    case EACCES:
      return "choose a port of 1024 or above";
    case EADDRNOTAVAIL:
      return "give one of this machine's addresses";
    default:
      return "stop what holds the address, or name another with --listen";
  }
}

absl::Status CannotListen(const HostPort& where, bool may_pass, const char* why, const char* remedy) {
  std::string text = absl::StrCat("cannot listen on ", where.ToString(), " (--listen): ", why, "; ", remedy);
  return may_pass ? absl::UnavailableError(text) : absl::InvalidArgumentError(text);
}

struct Address {
  sockaddr_storage bytes{};
  socklen_t size = 0;
};

template <typename Sockaddr>
Address AddressOf(const Sockaddr& from) {
  Address address{.size = sizeof from};
  std::memcpy(&address.bytes, &from, sizeof from);
  return address;
}

in_port_t& PortOf(Address& address) {
  return address.bytes.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(address.bytes).sin6_port
                                             : reinterpret_cast<sockaddr_in&>(address.bytes).sin_port;
}

bool IsWildcard(const Address& address) {
  if (address.bytes.ss_family == AF_INET) {
    return reinterpret_cast<const sockaddr_in&>(address.bytes).sin_addr.s_addr == htonl(INADDR_ANY);
  }
  return address.bytes.ss_family == AF_INET6 &&
         IN6_IS_ADDR_UNSPECIFIED(&reinterpret_cast<const sockaddr_in6&>(address.bytes).sin6_addr);
}

// A name may have one several times.
std::vector<Address> AddressesOf(const addrinfo* found) {
  std::vector<Address> addresses;
  for (; found != nullptr; found = found->ai_next) {
    Address address{.size = found->ai_addrlen};
    std::memcpy(&address.bytes, found->ai_addr, found->ai_addrlen);
    const auto is_it = [&](const Address& other) {
      return std::memcmp(&other.bytes, &address.bytes, sizeof address.bytes) == 0;
    };
    if (std::ranges::none_of(addresses, is_it)) addresses.push_back(address);
  }
  return addresses;
}

// A descriptor, or -1 with errno. Connections inherit the options.
int ListenAt(const Address& address) {
  const int fd = socket(address.bytes.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) return -1;
  const auto set = [fd](int level, int name, int value) { setsockopt(fd, level, name, &value, sizeof value); };
  set(SOL_SOCKET, SO_REUSEADDR, 1);
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, static_cast<int>(absl::ToInt64Milliseconds(kUntakenTimeout)));
  if (address.bytes.ss_family == AF_INET6) set(IPPROTO_IPV6, IPV6_V6ONLY, 0);
  if (bind(fd, reinterpret_cast<const sockaddr*>(&address.bytes), address.size) == 0 && listen(fd, SOMAXCONN) == 0) {
    return fd;
  }
  const int why = errno;
  close(fd);
  errno = why;
  return -1;
}

// This machine has no such address, as where there is no IPv6: others of the same name may do.
bool IsAbsent(int why) { return why == EAFNOSUPPORT || why == EADDRNOTAVAIL; }

// One of IPv6 takes IPv4 as well; where there is no IPv6, one of IPv4.
int ListenEverywhere(in_port_t port) {
  const int fd =
      ListenAt(AddressOf(sockaddr_in6{.sin6_family = AF_INET6, .sin6_port = port, .sin6_addr = in6addr_any}));
  if (fd >= 0 || !IsAbsent(errno)) return fd;
  return ListenAt(AddressOf(sockaddr_in{.sin_family = AF_INET, .sin_port = port, .sin_addr = {htonl(INADDR_ANY)}}));
}

in_port_t BoundPort(int fd) {
  Address address{.size = sizeof(sockaddr_storage)};
  getsockname(fd, reinterpret_cast<sockaddr*>(&address.bytes), &address.size);
  return PortOf(address);
}

// At each of them that this machine has, all with the same port. 0, or errno.
int ListenAtEach(const std::vector<Address>& addresses, in_port_t& port, std::vector<int>& listening) {
  int absent = 0;
  for (Address address : addresses) {
    PortOf(address) = port;
    const int fd = IsWildcard(address) ? ListenEverywhere(port) : ListenAt(address);
    if (fd < 0 && !IsAbsent(errno)) return errno;
    if (fd < 0) {
      absent = errno;
    } else {
      listening.push_back(fd);
      port = BoundPort(fd);
    }
  }
  return listening.empty() ? absent : 0;
}

// Descriptors are given out from the lowest: below this one none is free.
bool IsReserved(int fd) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return false;
  const auto most = static_cast<int64_t>(limit.rlim_cur);
  return fd >= most - std::min(kReservedDescriptors, most / 8);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Listener>> Listener::Create(const HostPort& where) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  if (const int rc = getaddrinfo(where.host.c_str(), std::to_string(where.port).c_str(), &hints, &found); rc != 0) {
    return CannotListen(where, rc == EAI_AGAIN, gai_strerror(rc), RemedyOf(EADDRNOTAVAIL));
  }
  const std::vector<Address> addresses = AddressesOf(found);
  freeaddrinfo(found);
  std::unique_ptr<Listener> listener;
  int why = EADDRINUSE;
  in_port_t port = 0;
  // The port that was picked for one address may be taken at the next.
  for (int tries = where.port == 0 ? kTriesOfAPort : 1; why == EADDRINUSE && tries > 0; --tries) {
    listener.reset(new Listener);
    port = htons(static_cast<uint16_t>(where.port));
    why = ListenAtEach(addresses, port, listener->listening_);
  }
  if (why != 0) return CannotListen(where, why != EACCES, std::strerror(why), RemedyOf(why));
  listener->stop_ = eventfd(0, EFD_CLOEXEC);
  if (listener->stop_ < 0) return CannotListen(where, true, std::strerror(errno), "allow more open files");
  listener->port_ = ntohs(port);
  return listener;
}

void Listener::Start(Take take) {
  take_ = std::move(take);
  thread_ = std::thread([this] {
    pthread_setname_np(pthread_self(), "accept");
    Run();
  });
}

void Listener::Stop() {
  if (thread_.joinable()) {
    eventfd_write(stop_, 1);
    thread_.join();
  }
  for (const int fd : listening_) close(fd);
  listening_.clear();
  if (stop_ >= 0) close(std::exchange(stop_, -1));
}

void Listener::Run() {
  std::vector<pollfd> awaited = {{.fd = stop_, .events = POLLIN}};
  for (const int fd : listening_) awaited.push_back({.fd = fd, .events = POLLIN});
  for (bool failed = false;;) {
    // After a failure only Stop is heard, for a moment.
    if (poll(awaited.data(), failed ? 1 : awaited.size(), failed ? kAcceptRetryMilliseconds : -1) < 0) continue;
    if (awaited.front().revents != 0) return;
    if (std::exchange(failed, false)) continue;
    for (size_t i = 1; i < awaited.size(); ++i) {
      if (awaited[i].revents != 0 && !Accept(awaited[i].fd)) failed = true;
    }
  }
}

// False: it cannot be accepted now.
bool Listener::Accept(int listening) {
  const int fd = accept4(listening, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
  if (fd < 0) {
    if (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED) return true;
    LOG_EVERY_T(WARNING, 10) << "grpc on port " << port_ << ": accept: " << std::strerror(errno);
    return false;
  }
  if (IsReserved(fd)) {
    close(fd);
    LOG_EVERY_T(WARNING, 10) << "grpc on port " << port_ << ": a client was turned away: the process has " << fd
                             << " descriptors, and the last that it may have are for others; allow more open files";
    return true;
  }
  take_(listening, fd);
  return true;
}

}  // namespace swiftcache
