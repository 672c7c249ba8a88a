// SPDX-License-Identifier: Apache-2.0
// A server that swiftcachectl runs: started with flags, its log in a file, its addresses read from what it prints.
//
//   ASSIGN_OR_RETURN(auto broker, ChildProcess::Start("broker", "/usr/bin/swiftcache-broker", flags, folder));
//   RETURN_IF_ERROR(broker->WaitListening(deadline));
//   broker->grpc_address();
#pragma once

#include <sys/types.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace swiftcache::services::ctl {

/// Its log is FOLDER/NAME.log. It is in a process group of its own, so that Ctrl-C on a terminal reaches this process
/// alone, and gets SIGTERM when this process ends, however that happens.
/// Thread-safety: none; started and used by the main thread, whose end is this process's. Ownership: owns the process:
/// the destructor kills and reaps it. Errors: INTERNAL (it cannot be started), ABORTED (it ended: with its last line).
class ChildProcess {
 public:
  static absl::StatusOr<std::unique_ptr<ChildProcess>> Start(std::string name, const std::string& binary,
                                                             const std::vector<std::string>& flags,
                                                             const std::string& folder);
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  const std::string& name() const { return name_; }
  const std::string& grpc_address() const { return grpc_address_; }  // after WaitListening
  const std::string& http_address() const { return http_address_; }
  /// Looks for `listening grpc=HOST:PORT http=HOST:PORT` on its output. False: not yet, after `timeout`.
  absl::StatusOr<bool> WaitListening(absl::Duration timeout);
  /// OK while it runs.
  absl::Status Check();
  void Terminate();  // SIGTERM
  /// Whether it has ended within `timeout`.
  bool WaitEnd(absl::Duration timeout);

 private:
  ChildProcess(std::string name, std::string log, pid_t pid, int output)
      : name_(std::move(name)), log_(std::move(log)), pid_(pid), output_(output) {}
  bool Reap(int flags);
  std::string LastLine() const;

  const std::string name_, log_;
  const pid_t pid_;
  const int output_;  // its standard output
  std::string printed_, grpc_address_, http_address_;
  std::optional<int> end_;  // as waitpid says it
};

}  // namespace swiftcache::services::ctl
