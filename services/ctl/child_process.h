// SPDX-License-Identifier: Apache-2.0
// A server that swiftcachectl runs: started with flags, its log in a file, its addresses read from what it prints.
//
//   ASSIGN_OR_RETURN(auto broker, ChildProcess::Start("broker", "/usr/bin/swiftcache-broker", flags, folder));
//   while (!broker->listens()) {
//     RETURN_IF_ERROR(broker->Check());
//     poll(...);                    // until broker->Events() has something
//   }
//   broker->grpc_address();
#pragma once

#include <poll.h>
#include <sys/types.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace swiftcache::services::ctl {

/// Its log is FOLDER/NAME.log. It is in a process group of its own, so that Ctrl-C on a terminal reaches this process
/// alone, and gets SIGTERM when this process ends, however that happens.
/// Thread-safety: none; started and used by the main thread, whose end is this process's. Ownership: owns the process:
/// the destructor kills and reaps it. Errors: INTERNAL and others of the system (it cannot be started), ABORTED (it
/// ended: with how, and the last line of its log).
class ChildProcess {
 public:
  static absl::StatusOr<std::unique_ptr<ChildProcess>> Start(std::string name, const std::string& binary,
                                                             const std::vector<std::string>& flags,
                                                             const std::string& folder);
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  const std::string& name() const { return name_; }
  /// Whether Check has read `listening grpc=HOST:PORT http=HOST:PORT`; the addresses are empty before.
  bool listens() const { return !grpc_address_.empty(); }
  const std::string& grpc_address() const { return grpc_address_; }
  const std::string& http_address() const { return http_address_; }

  /// Reads what it has printed. OK while it runs; never blocks.
  absl::Status Check();
  /// For poll(2): ready when Check has something to do.
  std::vector<pollfd> Events() const;

  void Terminate();  // SIGTERM
  /// Sleeps until it has ended or `timeout` is over. Whether it has ended.
  bool WaitEnd(absl::Duration timeout);
  /// SIGKILL, and waits for its end.
  void Kill();

 private:
  ChildProcess(std::string name, std::string log, pid_t pid, int end, int output)
      : name_(std::move(name)), log_(std::move(log)), pid_(pid), end_(end), output_(output) {}
  bool Reap(int flags);
  void ReadOutput();
  std::string LastLine() const;

  const std::string name_, log_;
  const pid_t pid_;
  const int end_;  // its pidfd: readable when it has ended
  int output_;     // its standard output; -1 once that is closed
  std::string printed_, grpc_address_, http_address_;
  std::optional<int> status_;  // as waitpid says it
};

}  // namespace swiftcache::services::ctl
