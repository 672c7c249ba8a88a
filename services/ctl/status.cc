// SPDX-License-Identifier: Apache-2.0
// swiftcachectl status: the broker's table of engines.
#include "common/rpc/status.h"

#include <grpcpp/client_context.h>

#include <iostream>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/status_macros.h"
#include "common/rpc/channel.h"
#include "services/ctl/commands.h"
#include "services/ctl/table.h"
#include "services/ctl/terminal.h"
#include "swiftcache/v1/broker.grpc.pb.h"

namespace swiftcache::services::ctl {
namespace {

constexpr absl::Duration kTimeout = absl::Seconds(5);

// The first message of a Watch, which is the snapshot.
absl::StatusOr<v1::WatchResponse> Snapshot(const std::string& broker) {
  auto stub = v1::BrokerService::NewStub(CreateRpcChannel(broker, {}));
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(RealClock().Now() + kTimeout));
  v1::WatchRequest request;
  request.set_watcher("swiftcachectl");
  auto reader = stub->Watch(&context, request);
  v1::WatchResponse first;
  const bool got = reader->Read(&first);
  context.TryCancel();
  const grpc::Status end = reader->Finish();
  if (got && first.has_snapshot()) return first;
  if (got) return absl::InternalError(absl::StrCat("broker ", broker, " began with news, wants a snapshot"));
  return absl::Status(FromGrpc(end).code(), absl::StrCat("no broker answers at ", broker, " (", end.error_message(),
                                                         "); start one or set --broker"));
}

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

absl::Status RunStatus(const Doors& doors) {
  ASSIGN_OR_RETURN(const v1::WatchResponse first, Snapshot(doors.broker));
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
  std::cout << Strong(absl::StrCat("broker ", doors.broker)) << ": " << engines
            << (engines == 1 ? " engine, " : " engines, ") << models.size()
            << (models.size() == 1 ? " model" : " models") << "\n";
  if (engines > 0) std::cout << WithoutControls(table.ToString());
  std::cout << std::flush;
  return absl::OkStatus();
}

}  // namespace

void AddStatus(CLI::App& app, const Doors& doors, Command& chosen) {
  CLI::App* command = app.add_subcommand("status", "Shows the engines: model, state, KV blocks, load")->fallthrough();
  command->callback([&] { chosen = [&] { return RunStatus(doors); }; });
}

}  // namespace swiftcache::services::ctl
