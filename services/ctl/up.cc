// SPDX-License-Identifier: Apache-2.0
// swiftcachectl up: a whole cluster in one command, for as long as it runs. Broker, gateway and an engine for each
// model are processes of their own, as they would be elsewhere.
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/status_macros.h"
#include "common/base/units.h"
#include "engine/memory/memory_limits.h"
#include "services/ctl/broker_connection.h"
#include "services/ctl/child_process.h"
#include "services/ctl/client.h"
#include "services/ctl/commands.h"
#include "services/ctl/table.h"
#include "services/flag_values.h"
#include "services/server_shell.h"

namespace swiftcache::services::ctl {
namespace {

namespace fs = std::filesystem;

constexpr absl::Duration kStartTimeout = absl::Minutes(10);  // of a large model on a slow disk
constexpr absl::Duration kDrainTimeout = absl::Seconds(10), kEndTimeout = absl::Seconds(15);
constexpr absl::Duration kServedTimeout = absl::Minutes(1);
constexpr absl::Duration kWatch = absl::Milliseconds(100);
constexpr int64_t kLeastArena = 64 * kMiB, kMostArena = 2 * kGiB;
constexpr int64_t kWeightsGrow = 4;  // from four bits a weight in a file to sixteen in memory
constexpr int kGatewayGrpcPort = 50051, kGatewayHttpPort = 8000;

struct UpFlags {
  std::vector<std::string> models;  // PATH or NAME=PATH
  std::optional<int64_t> kv_cache_bytes;
};

struct ModelFile {
  std::string name;  // "": what the engine calls it
  std::string path;
};

absl::StatusOr<std::vector<ModelFile>> ParseModels(const std::vector<std::string>& arguments) {
  std::vector<ModelFile> models;
  for (const std::string& argument : arguments) {
    ModelFile model = {.path = argument};
    if (const size_t sign = argument.find('='); sign != std::string::npos && !fs::exists(argument)) {
      model = {.name = argument.substr(0, sign), .path = argument.substr(sign + 1)};
    }
    if (!fs::exists(model.path)) {
      return absl::InvalidArgumentError(
          absl::StrCat("there is no model at '", model.path, "'; wanted a GGUF file or a Hugging Face folder"));
    }
    models.push_back(std::move(model));
  }
  return models;
}

int64_t BytesOf(const std::string& path) {
  std::error_code error;
  if (!fs::is_directory(path, error)) return static_cast<int64_t>(fs::file_size(path, error));
  int64_t bytes = 0;
  for (const fs::directory_entry& entry : fs::directory_iterator(path, error)) {
    if (entry.is_regular_file(error)) bytes += static_cast<int64_t>(entry.file_size(error));
  }
  return bytes;
}

// An engine's share of half of what the weights leave.
int64_t ArenaBytes(const std::vector<ModelFile>& models) {
  int64_t weights = 0;
  for (const ModelFile& model : models) weights += kWeightsGrow * BytesOf(model.path);
  const int64_t room = engine::memory::ReadMemoryHeadroom({}).bytes - weights;
  const int64_t share = room / 2 / static_cast<int64_t>(models.size()) / kMiB * kMiB;
  return std::clamp(share, kLeastArena, kMostArena);
}

bool IsFree(int port) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
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

std::string Loopback(int port) { return absl::StrCat("127.0.0.1:", port); }

// A folder for logs and sockets, whose paths must be short. It stays where something went wrong.
class RunFolder {
 public:
  static absl::StatusOr<std::unique_ptr<RunFolder>> Create() {
    char path[] = "/tmp/swiftcache-up.XXXXXX";
    if (mkdtemp(path) == nullptr) return absl::ErrnoToStatus(errno, "making a folder in /tmp for logs and sockets");
    return std::make_unique<RunFolder>(path);
  }
  explicit RunFolder(std::string path) : path_(std::move(path)) {}
  ~RunFolder() {
    std::error_code error;
    if (!keep_) fs::remove_all(path_, error);
  }
  const std::string& path() const { return path_; }
  void Keep() { keep_ = true; }

 private:
  const std::string path_;
  bool keep_ = false;
};

class Cluster {
 public:
  Cluster(const RunFolder& folder, ShutdownSignals& signals) : folder_(folder.path()), signals_(signals) {}

  // False: a signal came.
  absl::StatusOr<bool> Start(const std::vector<ModelFile>& models, int64_t kv_cache_bytes) {
    ASSIGN_OR_RETURN(broker_, Launch("broker", "swiftcache-broker", {}));
    ASSIGN_OR_RETURN(bool listens, Await(*broker_));
    if (!listens) return false;
    const std::string broker = absl::StrCat("--broker=", broker_->grpc_address());
    const std::string drain = absl::StrCat("--drain_timeout=", absl::FormatDuration(kDrainTimeout));
    const bool usual = IsFree(kGatewayGrpcPort) && IsFree(kGatewayHttpPort);
    ASSIGN_OR_RETURN(gateway_, Launch("gateway", "swiftcache-gateway", {broker, drain}, usual ? kGatewayGrpcPort : 0,
                                      usual ? kGatewayHttpPort : 0));
    for (size_t i = 0; i < models.size(); ++i) {
      std::vector<std::string> flags = {broker, drain, absl::StrCat("--model=", models[i].path),
                                        absl::StrCat("--shm_dir=", folder_),
                                        absl::StrCat("--kv_cache_bytes=", kv_cache_bytes)};
      if (!models[i].name.empty()) flags.push_back(absl::StrCat("--model_name=", models[i].name));
      ASSIGN_OR_RETURN(auto engine, Launch(absl::StrCat("engine-", i + 1), "swiftcache-engine", flags));
      engines_.push_back(std::move(engine));
    }
    ASSIGN_OR_RETURN(listens, Await(*gateway_));
    for (const auto& engine : engines_) {
      if (!listens) break;
      ASSIGN_OR_RETURN(listens, Await(*engine));
      if (listens) std::cout << "engine " << engine->grpc_address() << " is ready" << std::endl;
    }
    return listens;
  }

  // The first that has ended.
  absl::Status Check() {
    RETURN_IF_ERROR(broker_->Check());
    RETURN_IF_ERROR(gateway_->Check());
    for (const auto& engine : engines_) RETURN_IF_ERROR(engine->Check());
    return absl::OkStatus();
  }

  void Stop() {
    std::vector<ChildProcess*> first = {gateway_.get()};
    for (const auto& engine : engines_) first.push_back(engine.get());
    End(first);
    End({broker_.get()});
  }

  const ChildProcess& gateway() const { return *gateway_; }
  absl::StatusOr<std::vector<std::string>> Models() const {
    ASSIGN_OR_RETURN(const v1::WatchResponse first, BrokerConnection(broker_->grpc_address()).Snapshot());
    std::vector<std::string> names;
    for (const v1::EngineStatus& engine : first.snapshot().engines()) names.push_back(engine.info().model_name());
    return names;
  }
  const std::string& broker_address() const { return broker_->grpc_address(); }

 private:
  static absl::StatusOr<std::string> Binary(const std::string& name) {
    std::error_code error;
    const fs::path self = fs::read_symlink("/proc/self/exe", error);
    const fs::path binary = self.parent_path() / name;
    if (error || access(binary.c_str(), X_OK) != 0) {
      return absl::FailedPreconditionError(
          absl::StrCat(binary.string(), " cannot be run; wanted all of SwiftCache's binaries beside swiftcachectl"));
    }
    return binary.string();
  }
  absl::StatusOr<std::unique_ptr<ChildProcess>> Launch(const std::string& name, const std::string& binary,
                                                       std::vector<std::string> flags, int grpc_port = 0,
                                                       int http_port = 0) {
    ASSIGN_OR_RETURN(const std::string path, Binary(binary));
    flags.push_back(absl::StrCat("--listen=", Loopback(grpc_port)));
    flags.push_back(absl::StrCat("--http_listen=", Loopback(http_port)));
    return ChildProcess::Start(name, path, flags, folder_);
  }
  absl::StatusOr<bool> Await(ChildProcess& child) {
    for (const absl::Time deadline = absl::Now() + kStartTimeout; !signals_.Pending();) {
      ASSIGN_OR_RETURN(const bool listens, child.WaitListening(kWatch));
      if (listens) return true;
      if (absl::Now() > deadline) return absl::DeadlineExceededError(absl::StrCat(child.name(), " does not start"));
    }
    return false;
  }
  static void End(const std::vector<ChildProcess*>& children) {
    for (ChildProcess* child : children) {
      if (child != nullptr) child->Terminate();
    }
    const absl::Time deadline = absl::Now() + kEndTimeout;
    for (ChildProcess* child : children) {
      if (child != nullptr) (void)child->WaitEnd(deadline - absl::Now());
    }
  }

  const std::string folder_;
  ShutdownSignals& signals_;
  std::unique_ptr<ChildProcess> broker_, gateway_;
  std::vector<std::unique_ptr<ChildProcess>> engines_;
};

void PrintWelcome(const Cluster& cluster, const std::string& model, const std::string& folder) {
  const std::string& http = cluster.gateway().http_address();
  std::cout << "gateway: gRPC " << cluster.gateway().grpc_address() << ", HTTP http://" << http << "\n"
            << "broker: " << cluster.broker_address() << "\n"
            << "logs: " << folder << "\n"
            << "try: curl -sN http://" << http << "/v1/chat/completions -d '{\"model\":\"" << model
            << "\",\"stream\":true,\"messages\":[{\"role\":\"user\",\"content\":\"Hello\"}]}'\n"
            << "     swiftcachectl --gateway=" << cluster.gateway().grpc_address() << " chat --model=" << model << "\n"
            << "ready; Ctrl-C ends all" << std::endl;
}

absl::Status Serve(Cluster& cluster, const std::vector<ModelFile>& models, int64_t kv_cache_bytes,
                   ShutdownSignals& signals, const std::string& folder) {
  ASSIGN_OR_RETURN(const bool started, cluster.Start(models, kv_cache_bytes));
  if (!started) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::vector<std::string> names, cluster.Models());
  Client client(cluster.gateway().grpc_address());
  for (const std::string& name : names) RETURN_IF_ERROR(client.ResolveModel(name, kServedTimeout).status());
  PrintWelcome(cluster, names.empty() ? "MODEL" : names.front(), folder);
  for (; !signals.Pending(); absl::SleepFor(kWatch)) RETURN_IF_ERROR(cluster.Check());
  return absl::OkStatus();
}

absl::Status RunUp(const UpFlags& flags) {
  ASSIGN_OR_RETURN(const std::vector<ModelFile> models, ParseModels(flags.models));
  ShutdownSignals signals;
  ASSIGN_OR_RETURN(const std::unique_ptr<RunFolder> folder, RunFolder::Create());
  const int64_t kv_cache_bytes = flags.kv_cache_bytes.value_or(ArenaBytes(models));
  std::cout << "starting " << models.size() << (models.size() == 1 ? " engine" : " engines") << ", each with "
            << ShowBytes(kv_cache_bytes) << " of KV memory" << std::endl;
  Cluster cluster(*folder, signals);
  const absl::Status status = Serve(cluster, models, kv_cache_bytes, signals, folder->path());
  if (!status.ok()) folder->Keep();
  if (status.ok()) std::cout << "stopping" << std::endl;
  cluster.Stop();
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat(status.message(), "; all logs are in ", folder->path()));
}

}  // namespace

void AddUp(CLI::App& app, Command& chosen) {
  auto flags = std::make_shared<UpFlags>();  // shared by the parser and the command
  CLI::App* command =
      app.add_subcommand("up", "Runs a cluster until Ctrl-C: broker, gateway and an engine for each model");
  command->add_option("model", flags->models, "GGUF file or Hugging Face folder, or NAME=PATH")->required();
  command
      ->add_option_function<std::string>(
          "--kv_cache_bytes", [flags](const std::string& text) { flags->kv_cache_bytes = *ParseBytes(text); },
          "KV memory of each engine; default: its share of half of what the weights leave, 64MiB to 2GiB")
      ->check([](const std::string& text) { return std::string(ParseBytes(text).status().message()); });
  command->callback([&chosen, flags] { chosen = [flags] { return RunUp(*flags); }; });
}

}  // namespace swiftcache::services::ctl
