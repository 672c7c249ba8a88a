// SPDX-License-Identifier: Apache-2.0
// What all servers' mains have in common: signals, the line that says where the server listens, the line that says why
// it ends.
//
//   PrepareProcess();                             // first: before any thread
//   ShutdownSignals signals;                      // likewise
//   if (std::optional<int> code = flags.Parse(argc, argv)) return *code;
//   StartLogging(log_flags.Options({.program = argv[0]}));
//   RaiseFileLimit();
//   ...                                           // Create
//   if (!server.ok()) return Fail("swiftcache-broker", server.status());
//   PrintListening((*server)->address(), (*http)->address());
//   signals.Wait();
//   ...                                           // shut down
#pragma once

#include <signal.h>

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "common/log/log.h"

namespace swiftcache::services {

/// SIGTERM and SIGINT, and SIGHUP, by which a terminal that is closed ends what it began, unless it is ignored (nohup).
sigset_t EndingSignals();

/// Blocks EndingSignals, SIGUSR1 and SIGUSR2 in this thread and all that it will start, so that only Wait receives
/// them. SIGPIPE is ignored. Thread-safety: none; lives in main. REQUIRES: made before any thread exists.
class ShutdownSignals {
 public:
  ShutdownSignals();
  /// Sleeps until one of EndingSignals comes, and returns it. Meanwhile SIGUSR1 makes the log more talkative by one level,
  /// and SIGUSR2 less.
  int Wait();
  /// As if SIGTERM had come: for code which finds that this process has to end. Any thread.
  static void Raise();
  /// Whether a signal has come that Wait has not returned yet and would return.
  bool Pending() const;
};

/// InitLogging, and gRPC's own log goes through glog at verbose level. REQUIRES: no thread of ours exists.
void StartLogging(const LogOptions& options);

/// Threads that start from now on run soon after they wake (common/sync/scheduler_slice.h), and mutexes look for no lock
/// cycles, as they do in tests: Debian's Abseil is a debug build, which records each lock that is held together with
/// another, gRPC's too, in one graph behind one spinlock. REQUIRES: first in main.
void PrepareProcess();

/// Lets this process open as many files as its hard limit allows: a client takes one, and so does a lease; the usual
/// soft limit of 1,024 is there for programs that call select(2). Where it cannot be raised it stays.
void RaiseFileLimit();

/// As many clients of HTTP as are `wanted`, but at most three quarters of the files that this process may open, with a
/// warning: each takes one, and where they have all, no other client is let in, nor who asks how the server is.
int64_t HttpConnections(int64_t wanted);

/// `listening grpc=HOST:PORT http=HOST:PORT` on standard output: scripts read it. The log warns of what is not on loopback.
void PrintListening(const std::string& grpc_address, const std::string& http_address);

/// 16 random hexadecimal digits: tells this process from earlier ones.
std::string RandomId();

/// `program: message` as one line on standard error. Returns the exit code: 1 for what may pass, so that starting again
/// may help (memory is short, a port or a name is held, a peer is away), else 2.
int Fail(const std::string& program, const absl::Status& status);

}  // namespace swiftcache::services
