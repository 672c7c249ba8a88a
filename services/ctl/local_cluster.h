// SPDX-License-Identifier: Apache-2.0
// A broker, a gateway and an engine for each model on this machine, as processes of their own.
//
//   LocalCluster cluster(folder, signals);
//   ASSIGN_OR_RETURN(bool started, cluster.Start(models, kv_cache_bytes));
//   if (started) RETURN_IF_ERROR(cluster.Watch());
//   cluster.Stop();
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "services/ctl/child_process.h"
#include "services/ctl/local_model.h"
#include "services/server_shell.h"

namespace swiftcache::services::ctl {

/// Prints progress on standard output, a line for each model. What a signal interrupts returns false or OK.
/// Thread-safety: none; lives in the main thread. Ownership: owns the processes, whose logs and sockets are in `folder`;
/// borrows `signals`. Errors: ABORTED (a process ended), DEADLINE_EXCEEDED (a process does not start), and others where
/// binaries cannot be run.
class LocalCluster {
 public:
  LocalCluster(std::string folder, ShutdownSignals& signals);
  ~LocalCluster();
  LocalCluster(const LocalCluster&) = delete;
  LocalCluster& operator=(const LocalCluster&) = delete;

  /// Until the gateway serves all models. False: a signal came before. Broker and gateway listen on the usual ports
  /// where these are free, engines on any.
  absl::StatusOr<bool> Start(const std::vector<LocalModel>& models, int64_t kv_cache_bytes);
  /// Sleeps until a signal comes (OK) or a process ends.
  absl::Status Watch();
  /// Engines and gateway drain and end, then the broker. Names of those that had to be killed.
  std::vector<std::string> Stop();

  // After Start.
  const ChildProcess& gateway() const { return *gateway_; }
  const ChildProcess& broker() const { return *broker_; }
  const std::vector<std::unique_ptr<ChildProcess>>& engines() const { return engines_; }

 private:
  absl::StatusOr<std::unique_ptr<ChildProcess>> Launch(const std::string& name, const std::string& binary,
                                                       std::vector<std::string> flags, int grpc_port = 0,
                                                       int http_port = 0);
  absl::StatusOr<bool> AwaitListening(const ChildProcess& child);
  absl::StatusOr<bool> AwaitServed(const std::vector<LocalModel>& models);
  std::vector<ChildProcess*> All() const;
  absl::Status Check();
  void Sleep(absl::Time deadline);

  const std::string folder_;
  ShutdownSignals& signals_;
  const int signal_fd_;  // readable when a signal has come
  std::unique_ptr<ChildProcess> broker_, gateway_;
  std::vector<std::unique_ptr<ChildProcess>> engines_;
};

}  // namespace swiftcache::services::ctl
