// SPDX-License-Identifier: Apache-2.0
// swiftcachectl up: a whole cluster in one command, for as long as it runs. Broker, gateway and an engine for each
// model are processes of their own, as they would be elsewhere.
#include <stdlib.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/base/status_macros.h"
#include "engine/memory/memory_limits.h"
#include "services/ctl/commands.h"
#include "services/ctl/local_cluster.h"
#include "services/ctl/local_model.h"
#include "services/ctl/table.h"
#include "services/flag_values.h"
#include "services/server_shell.h"

namespace swiftcache::services::ctl {
namespace {

struct UpFlags {
  std::vector<std::string> models;  // PATH or NAME=PATH
  std::optional<int64_t> kv_cache_bytes;
  std::string program;  // as another terminal can start it
};

// A folder for logs and sockets, whose paths must be short. Nobody else may look into it. It stays where something went
// wrong.
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
    if (!keep_) std::filesystem::remove_all(path_, error);
  }
  const std::string& path() const { return path_; }
  void Keep() { keep_ = true; }

 private:
  const std::string path_;
  bool keep_ = false;
};

// A path as a shell takes it in any folder; what was found by PATH alone stays as it was typed.
std::string FromAnywhere(const std::string& program) {
  if (program.find('/') == std::string::npos) return program;
  const std::string path = std::filesystem::absolute(program).lexically_normal().string();
  const bool plain = std::all_of(path.begin(), path.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || std::string_view("/._+-").find(c) != std::string_view::npos;
  });
  return plain ? path : absl::StrCat("'", absl::StrReplaceAll(path, {{"'", "'\\''"}}), "'");
}

void PrintWelcome(const LocalCluster& cluster, const std::string& model, const std::string& program) {
  const std::string& grpc = cluster.gateway().grpc_address();
  const std::string& http = cluster.gateway().http_address();
  std::cout << "gateway: gRPC " << grpc << ", HTTP http://" << http << "\n"
            << "broker: " << cluster.broker().grpc_address() << "\n"
            << "metrics: http://" << cluster.broker().http_address() << "/metrics http://" << http << "/metrics";
  for (const auto& engine : cluster.engines()) std::cout << " http://" << engine->http_address() << "/metrics";
  std::cout << "\n"
            << "try: curl -sN http://" << http << "/v1/chat/completions -d '{\"model\":\"" << model
            << "\",\"stream\":true,\"temperature\":0,\"messages\":[{\"role\":\"user\",\"content\":\"Hello\"}]}'\n"
            << "     " << program << " --gateway=" << grpc << " chat --model=" << model << "\n"
            << "     " << program << " --broker=" << cluster.broker().grpc_address() << " top\n"
            << "ready; Ctrl-C ends all" << std::endl;
}

absl::Status Serve(LocalCluster& cluster, const std::vector<LocalModel>& models, int64_t kv_cache_bytes,
                   const std::string& program) {
  ASSIGN_OR_RETURN(const bool started, cluster.Start(models, kv_cache_bytes));
  if (!started) return absl::OkStatus();
  PrintWelcome(cluster, models.front().name, program);
  return cluster.Watch();
}

absl::Status RunUp(const UpFlags& flags) {
  ASSIGN_OR_RETURN(const std::vector<LocalModel> models, ParseLocalModels(flags.models));
  ShutdownSignals signals;
  ASSIGN_OR_RETURN(const std::unique_ptr<RunFolder> folder, RunFolder::Create());
  const int64_t kv_cache_bytes =
      flags.kv_cache_bytes.value_or(KvCacheShare(engine::memory::ReadMemoryHeadroom({}).bytes, models));
  std::cout << "starting " << models.size() << (models.size() == 1 ? " engine" : " engines, each") << " with "
            << ShowBytes(kv_cache_bytes) << " of KV memory\n"
            << "logs: " << folder->path() << std::endl;
  LocalCluster cluster(folder->path(), signals);
  const absl::Status status = Serve(cluster, models, kv_cache_bytes, flags.program);
  if (status.ok()) std::cout << "stopping" << std::endl;
  std::cout.clear();  // the terminal may be what has ended
  for (const std::string& name : cluster.Stop()) {
    std::cerr << "swiftcachectl: " << name << " did not end in time and was killed; its log is in " << folder->path()
              << std::endl;
    folder->Keep();
  }
  if (status.ok()) return status;
  folder->Keep();
  return absl::Status(status.code(), absl::StrCat(status.message(), "; all logs are in ", folder->path()));
}

}  // namespace

void AddUp(CLI::App& app, const std::string& program, Command& chosen) {
  auto flags = std::make_shared<UpFlags>();  // shared by the parser and the command
  flags->program = FromAnywhere(program);
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
