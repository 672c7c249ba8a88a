// SPDX-License-Identifier: Apache-2.0
#include "services/ctl/local_cluster.h"

#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/status_macros.h"
#include "services/ctl/client.h"

namespace swiftcache::services::ctl {
namespace {

namespace fs = std::filesystem;

constexpr absl::Duration kStartTimeout = absl::Minutes(10);  // of a large model on a slow disk
constexpr absl::Duration kServedTimeout = absl::Minutes(1);  // from an engine that listens to a gateway that knows it
constexpr absl::Duration kDrainTimeout = absl::Seconds(10);
constexpr absl::Duration kEndTimeout = absl::Seconds(15);  // of it 5 s for what comes after the drain
constexpr absl::Duration kGatewayAsk = absl::Milliseconds(100);
constexpr absl::Duration kLongestSleep = absl::Minutes(1);
constexpr int kBrokerGrpcPort = 50050, kBrokerHttpPort = 9180, kGatewayGrpcPort = 50051, kGatewayHttpPort = 8000;

int SignalFd() {
  const sigset_t set = EndingSignals();
  return signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
}

// Whether nobody listens there at present; a server that comes in between ends the cluster with one clear line.
bool IsFree(int port) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return false;
  const int on = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const bool is_free = bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
  close(fd);
  return is_free;
}

// 0 (any) where it is taken.
int UsualPort(int port) {
  if (IsFree(port)) return port;
  std::cout << "port " << port << " is in use: another is taken instead" << std::endl;
  return 0;
}

// Beside this program.
absl::StatusOr<std::string> Binary(const std::string& name) {
  std::error_code error;
  const fs::path binary = fs::read_symlink("/proc/self/exe", error).parent_path() / name;
  if (error || access(binary.c_str(), X_OK) != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat(binary.string(), " cannot be run; wanted all of SwiftCache's binaries beside swiftcachectl"));
  }
  return binary.string();
}

std::vector<std::string> End(const std::vector<ChildProcess*>& children) {
  for (ChildProcess* child : children) child->Terminate();
  const absl::Time deadline = RealClock().Now() + kEndTimeout;
  std::vector<std::string> killed;
  for (ChildProcess* child : children) {
    if (child->WaitEnd(deadline - RealClock().Now())) continue;
    child->Kill();
    killed.push_back(child->name());
  }
  return killed;
}

}  // namespace

LocalCluster::LocalCluster(std::string folder, ShutdownSignals& signals)
    : folder_(std::move(folder)), signals_(signals), signal_fd_(SignalFd()) {}

LocalCluster::~LocalCluster() { close(signal_fd_); }

absl::StatusOr<bool> LocalCluster::Start(const std::vector<LocalModel>& models, int64_t kv_cache_bytes) {
  ASSIGN_OR_RETURN(broker_,
                   Launch("broker", "swiftcache-broker", {}, UsualPort(kBrokerGrpcPort), UsualPort(kBrokerHttpPort)));
  ASSIGN_OR_RETURN(const bool has_broker, AwaitListening(*broker_));
  if (!has_broker) return false;
  const std::string broker = absl::StrCat("--broker=", broker_->grpc_address());
  const std::string drain = absl::StrCat("--drain_timeout=", absl::FormatDuration(kDrainTimeout));
  ASSIGN_OR_RETURN(gateway_, Launch("gateway", "swiftcache-gateway", {broker, drain}, UsualPort(kGatewayGrpcPort),
                                    UsualPort(kGatewayHttpPort)));
  for (const LocalModel& model : models) {
    ASSIGN_OR_RETURN(auto engine,
                     Launch(model.engine, "swiftcache-engine",
                            {broker, drain, absl::StrCat("--model=", model.path),
                             absl::StrCat("--model_name=", model.name), absl::StrCat("--name=", model.engine),
                             absl::StrCat("--shm_dir=", folder_), absl::StrCat("--kv_cache_bytes=", kv_cache_bytes)}));
    engines_.push_back(std::move(engine));
  }
  ASSIGN_OR_RETURN(const bool has_gateway, AwaitListening(*gateway_));
  if (!has_gateway) return false;
  return AwaitServed(models);
}

absl::Status LocalCluster::Watch() {
  while (!signals_.Pending()) {
    RETURN_IF_ERROR(Check());
    Sleep(absl::InfiniteFuture());
  }
  return absl::OkStatus();
}

std::vector<std::string> LocalCluster::Stop() {
  std::vector<ChildProcess*> first = All();
  first.erase(std::remove(first.begin(), first.end(), broker_.get()), first.end());
  std::vector<std::string> killed = End(first);
  if (broker_) {
    for (std::string& name : End({broker_.get()})) killed.push_back(std::move(name));
  }
  return killed;
}

absl::StatusOr<std::unique_ptr<ChildProcess>> LocalCluster::Launch(const std::string& name, const std::string& binary,
                                                                   std::vector<std::string> flags, int grpc_port,
                                                                   int http_port) {
  ASSIGN_OR_RETURN(const std::string path, Binary(binary));
  flags.push_back(absl::StrCat("--listen=127.0.0.1:", grpc_port));
  flags.push_back(absl::StrCat("--http_listen=127.0.0.1:", http_port));
  return ChildProcess::Start(name, path, flags, folder_);
}

absl::StatusOr<bool> LocalCluster::AwaitListening(const ChildProcess& child) {
  const absl::Time deadline = RealClock().Now() + kStartTimeout;
  while (!signals_.Pending()) {
    RETURN_IF_ERROR(Check());
    if (child.listens()) return true;
    if (RealClock().Now() >= deadline) {
      return absl::DeadlineExceededError(
          absl::StrCat(child.name(), " does not listen after ", absl::FormatDuration(kStartTimeout)));
    }
    Sleep(deadline);
  }
  return false;
}

absl::StatusOr<bool> LocalCluster::AwaitServed(const std::vector<LocalModel>& models) {
  Client client(gateway_->grpc_address());  // its threads come after the last fork
  for (size_t i = 0; i < models.size(); ++i) {
    ASSIGN_OR_RETURN(const bool listens, AwaitListening(*engines_[i]));
    if (!listens) return false;
    for (const absl::Time deadline = RealClock().Now() + kServedTimeout;;) {
      if (signals_.Pending()) return false;
      RETURN_IF_ERROR(Check());
      const absl::StatusOr<std::string> served = client.ResolveModel(models[i].name, kGatewayAsk);
      if (served.ok()) break;
      const bool may_come = absl::IsNotFound(served.status()) || absl::IsUnavailable(served.status());
      if (!may_come || RealClock().Now() >= deadline) return served.status();
    }
    std::cout << models[i].name << ": served by " << engines_[i]->name() << " at " << engines_[i]->grpc_address()
              << std::endl;
  }
  return true;
}

std::vector<ChildProcess*> LocalCluster::All() const {
  std::vector<ChildProcess*> all;
  for (const auto& engine : engines_) all.push_back(engine.get());
  if (gateway_) all.push_back(gateway_.get());
  if (broker_) all.push_back(broker_.get());
  return all;
}

absl::Status LocalCluster::Check() {
  for (ChildProcess* child : All()) RETURN_IF_ERROR(child->Check());
  return absl::OkStatus();
}

// Until a signal comes, a process prints or ends, or `deadline`.
void LocalCluster::Sleep(absl::Time deadline) {
  std::vector<pollfd> events = {{.fd = signal_fd_, .events = POLLIN}};
  for (const ChildProcess* child : All()) {
    for (const pollfd& event : child->Events()) events.push_back(event);
  }
  const absl::Duration length = std::clamp(deadline - RealClock().Now(), absl::ZeroDuration(), kLongestSleep);
  poll(events.data(), events.size(), static_cast<int>(absl::ToInt64Milliseconds(length)) + 1);
}

}  // namespace swiftcache::services::ctl
