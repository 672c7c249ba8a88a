// SPDX-License-Identifier: Apache-2.0
#include "services/server_shell.h"

#include <grpc/support/log.h>
#include <netdb.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <iostream>
#include <random>

#include "absl/base/attributes.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "common/rpc/address.h"
#include "common/sync/scheduler_slice.h"

namespace swiftcache::services {
namespace {

sigset_t Signals() {
  sigset_t set = EndingSignals();
  sigaddset(&set, SIGUSR1);
  sigaddset(&set, SIGUSR2);
  return set;
}

// One step, as far as there is one.
void ChangeLogLevel(int step) {
  const int level = static_cast<int>(CurrentLogLevel()) + step;
  SetLogLevel(static_cast<LogLevel>(
      std::clamp(level, static_cast<int>(LogLevel::kError), static_cast<int>(LogLevel::kVerbose))));
}

void LogOfGrpc(gpr_log_func_args* args) {
  if (CurrentLogLevel() < LogLevel::kVerbose) return;
  google::LogMessage(args->file, args->line, google::GLOG_INFO).stream() << "grpc: " << args->message;
}

bool IsLoopback(const sockaddr& address) {
  switch (address.sa_family) {
    case AF_INET:
      return ntohl(reinterpret_cast<const sockaddr_in&>(address).sin_addr.s_addr) >> 24 == 127;
    case AF_INET6:
      return IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6&>(address).sin6_addr);
    default:
      return false;
  }
}

// Whether this machine alone reaches `address`, which is host:port.
bool OnLoopback(const std::string& address) {
  const absl::StatusOr<HostPort> where = HostPort::Parse(address);
  addrinfo* found = nullptr;
  if (!where.ok() || getaddrinfo(where->host.c_str(), nullptr, nullptr, &found) != 0) return false;
  bool all = true;
  for (const addrinfo* a = found; a != nullptr; a = a->ai_next) all = all && IsLoopback(*a->ai_addr);
  freeaddrinfo(found);
  return all;
}

void WarnIfOthersReach(const std::string& flag, const std::string& address) {
  if (OnLoopback(address)) return;
  LOG(WARNING) << address << " (" << flag
               << ") is not on loopback, and no key is asked for: let only those reach it who "
               << "may use it, as .github/SECURITY.md says";
}

bool MayPass(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kAlreadyExists:
    case absl::StatusCode::kResourceExhausted:
    case absl::StatusCode::kDeadlineExceeded:
    case absl::StatusCode::kAborted:
    case absl::StatusCode::kInternal:
      return true;
    default:
      return false;
  }
}

}  // namespace

sigset_t EndingSignals() {
  static const bool heeds_hangup = [] {
    struct sigaction action = {};
    return sigaction(SIGHUP, nullptr, &action) == 0 && action.sa_handler != SIG_IGN;
  }();
  sigset_t set;
  sigemptyset(&set);
  for (const int ends : {SIGTERM, SIGINT}) sigaddset(&set, ends);
  if (heeds_hangup) sigaddset(&set, SIGHUP);
  return set;
}

ShutdownSignals::ShutdownSignals() {
  const sigset_t set = Signals();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  signal(SIGPIPE, SIG_IGN);
}

int ShutdownSignals::Wait() {
  const sigset_t set = Signals();
  for (;;) {
    int received = 0;
    if (sigwait(&set, &received) != 0) continue;
    if (received != SIGUSR1 && received != SIGUSR2) return received;
    ChangeLogLevel(received == SIGUSR1 ? 1 : -1);
  }
}

void ShutdownSignals::Raise() { kill(getpid(), SIGTERM); }

bool ShutdownSignals::Pending() const {
  sigset_t pending;
  sigpending(&pending);
  const sigset_t ending = EndingSignals();
  return sigandset(&pending, &pending, &ending) == 0 && sigisemptyset(&pending) == 0;
}

void StartLogging(const LogOptions& options) {
  InitLogging(options);
  gpr_set_log_function(LogOfGrpc);
}

void PrepareProcess() {
  SetSchedulerSlice(SchedulerSlice::kShort);
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
}

void RaiseFileLimit() {
  rlimit files{};
  if (getrlimit(RLIMIT_NOFILE, &files) != 0) return;
  files.rlim_cur = files.rlim_max;
  if (setrlimit(RLIMIT_NOFILE, &files) != 0) PLOG(WARNING) << "the limit of open files stays";
}

int64_t HttpConnections(int64_t wanted) {
  rlimit files{};
  if (getrlimit(RLIMIT_NOFILE, &files) != 0 || files.rlim_cur == RLIM_INFINITY) return wanted;
  const auto most = std::max<int64_t>(1, static_cast<int64_t>(files.rlim_cur / 4 * 3));
  if (wanted <= most) return wanted;
  LOG(WARNING) << wanted << " clients of HTTP are too many for a process that may open " << files.rlim_cur
               << " files: " << most << " are served at once; allow more open files (ulimit -n, LimitNOFILE)";
  return most;
}

void PrintListening(const std::string& grpc_address, const std::string& http_address) {
  std::cout << "listening grpc=" << grpc_address << " http=" << http_address << std::endl;
  WarnIfOthersReach("--listen", grpc_address);
  WarnIfOthersReach("--http_listen", http_address);
}

std::string RandomId() {
  std::random_device device;
  return absl::StrFormat("%08x%08x", device(), device());
}

int Fail(const std::string& program, const absl::Status& status) {
  std::string line(status.message());
  for (char& c : line) c = static_cast<unsigned char>(c) < ' ' ? ' ' : c;
  PrintBehindLog(absl::StrCat(program, ": ", line));
  return MayPass(status.code()) ? 1 : 2;
}

}  // namespace swiftcache::services
