// SPDX-License-Identifier: Apache-2.0
// swiftcachectl detokenize: token ids to text.
#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "common/base/status_macros.h"
#include "services/ctl/client.h"
#include "services/ctl/commands.h"
#include "services/ctl/sampling_flags.h"
#include "services/ctl/terminal.h"

namespace swiftcache::services::ctl {
namespace {

struct DetokenizeFlags {
  ModelFlags model;
  std::vector<int32_t> ids;
};

absl::Status RunDetokenize(const Addresses& addresses, const DetokenizeFlags& flags) {
  Client client(addresses.gateway);
  v1::DetokenizeRequest request;
  ASSIGN_OR_RETURN(*request.mutable_model(), client.ResolveModel(flags.model.model, flags.model.wait()));
  request.mutable_token_ids()->Assign(flags.ids.begin(), flags.ids.end());
  ASSIGN_OR_RETURN(const v1::DetokenizeResponse response, client.Detokenize(request));
  Show(response.text() + "\n");
  return absl::OkStatus();
}

}  // namespace

void AddDetokenize(CLI::App& app, const Addresses& addresses, Command& chosen) {
  auto flags = std::make_shared<DetokenizeFlags>();  // shared by the parser and the command
  CLI::App* command = app.add_subcommand("detokenize", "Token ids to text")->fallthrough();
  flags->model.AddTo(*command);
  command->add_option("ids", flags->ids, "token ids")->required();
  command->callback([&, flags] { chosen = [&, flags] { return RunDetokenize(addresses, *flags); }; });
}

}  // namespace swiftcache::services::ctl
