// SPDX-License-Identifier: Apache-2.0
// swiftcachectl tokenize: text to token ids, on one line.
#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>
#include <string>

#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "services/ctl/client.h"
#include "services/ctl/commands.h"
#include "services/ctl/sampling_flags.h"

namespace swiftcache::services::ctl {
namespace {

struct TokenizeFlags {
  ModelFlags model;
  std::string text;
  bool parse_special = false;
};

absl::Status RunTokenize(const Addresses& addresses, const TokenizeFlags& flags) {
  Client client(addresses.gateway);
  v1::TokenizeRequest request;
  ASSIGN_OR_RETURN(*request.mutable_model(), client.ResolveModel(flags.model.model, flags.model.wait()));
  request.set_text(flags.text);
  request.set_parse_special(flags.parse_special);
  ASSIGN_OR_RETURN(const v1::TokenizeResponse response, client.Tokenize(request));
  std::cout << absl::StrJoin(response.token_ids(), " ") << std::endl;
  return absl::OkStatus();
}

}  // namespace

void AddTokenize(CLI::App& app, const Addresses& addresses, Command& chosen) {
  auto flags = std::make_shared<TokenizeFlags>();  // shared by the parser and the command
  CLI::App* command = app.add_subcommand("tokenize", "Text to token ids")->fallthrough();
  flags->model.AddTo(*command);
  command->add_option("--text", flags->text, "the text")->required();
  command->add_flag("--parse_special", flags->parse_special, "text that looks like a special token becomes that token");
  command->callback([&, flags] { chosen = [&, flags] { return RunTokenize(addresses, *flags); }; });
}

}  // namespace swiftcache::services::ctl
