// SPDX-License-Identifier: Apache-2.0
// swiftcachectl status: the broker's table of engines.
#include <CLI/CLI.hpp>
#include <iostream>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "services/ctl/broker_connection.h"
#include "services/ctl/commands.h"
#include "services/ctl/json_output.h"
#include "services/ctl/table.h"
#include "services/ctl/terminal.h"

namespace swiftcache::services::ctl {
namespace {

std::vector<std::string> Row(const v1::EngineStatus& engine) {
  const v1::EngineInfo& info = engine.info();
  const v1::EngineLoad& load = engine.load();
  return {info.name(),
          info.model_name(),
          v1::EngineState_Name(info.state()),
          info.address().empty() ? "-" : info.address(),
          info.kv().kv_cache_dtype(),
          absl::StrCat(info.kv().block_tokens()),
          ShowBytes(info.kv().block_bytes()),
          absl::StrCat(info.kv().num_blocks()),
          absl::StrCat(load.kv_blocks_used()),
          absl::StrCat(load.kv_blocks_cached()),
          absl::StrCat(load.running_requests()),
          absl::StrCat(load.waiting_requests())};
}

absl::Status RunStatus(const Addresses& addresses, const std::string& output) {
  ASSIGN_OR_RETURN(const v1::WatchResponse first, BrokerConnection(addresses.broker).Snapshot());
  if (output == kJson) {
    ClusterTable cluster;
    cluster.Apply(first);
    std::cout << StatusJson(addresses.broker, cluster) << std::endl;
    return absl::OkStatus();
  }
  Table table({{"ENGINE"},
               {"MODEL"},
               {"STATE"},
               {"ADDRESS"},
               {"KV"},
               {"TOKENS/BLOCK", Table::kRight},
               {"BLOCK", Table::kRight},
               {"BLOCKS", Table::kRight},
               {"USED", Table::kRight},
               {"CACHED", Table::kRight},
               {"RUNNING", Table::kRight},
               {"WAITING", Table::kRight}});
  std::set<std::string> models;
  for (const v1::EngineStatus& engine : first.snapshot().engines()) {
    models.insert(engine.info().model_name());
    table.Add(Row(engine));
  }
  const int engines = first.snapshot().engines_size();
  std::cout << Strong(absl::StrCat("broker ", addresses.broker)) << ": " << engines
            << (engines == 1 ? " engine, " : " engines, ") << models.size()
            << (models.size() == 1 ? " model" : " models") << "\n";
  if (engines > 0) std::cout << WithoutControls(table.ToString());
  std::cout << std::flush;
  return absl::OkStatus();
}

}  // namespace

void AddStatus(CLI::App& app, const Addresses& addresses, Command& chosen) {
  CLI::App* command = app.add_subcommand("status", "Shows the engines: model, state, KV blocks, load")->fallthrough();
  const auto output = AddOutputFlag(*command);
  command->callback(
      [&addresses, &chosen, output] { chosen = [&addresses, output] { return RunStatus(addresses, *output); }; });
}

}  // namespace swiftcache::services::ctl
