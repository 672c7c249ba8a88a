// SPDX-License-Identifier: Apache-2.0
// swiftcachectl generate: continues a prompt. The text goes to standard output, what it cost to standard error.
#include <CLI/CLI.hpp>
#include <iostream>
#include <iterator>
#include <map>
#include <memory>
#include <string>

#include "common/base/status_macros.h"
#include "services/ctl/client.h"
#include "services/ctl/commands.h"
#include "services/ctl/complaint.h"
#include "services/ctl/sampling_flags.h"
#include "services/ctl/terminal.h"

namespace swiftcache::services::ctl {
namespace {

struct GenerateFlags {
  ModelFlags model;
  SamplingFlags sampling;
  std::string prompt, cache_salt;
  int32_t n = 1;
};

std::string Prompt(const GenerateFlags& flags) {
  if (flags.prompt != "-") return flags.prompt;
  return std::string(std::istreambuf_iterator<char>(std::cin), std::istreambuf_iterator<char>());
}

// One continuation streams; several would mix, so they are shown one after the other at the end.
absl::StatusOr<Turn> Stream(Client& client, const v1::GenerateRequest& request, int32_t n) {
  if (n == 1) {
    if (OnTerminal()) Show(request.prompt());
    return client.Generate(request, [](const v1::GenerateResponse& response) { Show(response.text()); });
  }
  std::map<int32_t, std::string> texts;
  ASSIGN_OR_RETURN(Turn turn, client.Generate(request, [&texts](const v1::GenerateResponse& response) {
    texts[response.index()] += response.text();
  }));
  for (const auto& [index, text] : texts) {
    std::cout << Strong("[" + std::to_string(index) + "] ");
    Show(text + (index + 1 < n ? "\n" : ""));
  }
  return turn;
}

absl::Status RunGenerate(const Addresses& addresses, const GenerateFlags& flags) {
  Client client(addresses.gateway);
  ASSIGN_OR_RETURN(const std::string model, client.ResolveModel(flags.model.model, flags.model.wait()));
  v1::GenerateRequest request;
  request.set_model(model);
  request.set_prompt(Prompt(flags));
  *request.mutable_sampling() = flags.sampling.ToProto();
  if (flags.n != 1) request.mutable_sampling()->set_n(flags.n);
  request.set_cache_salt(flags.cache_salt);
  ASSIGN_OR_RETURN(const Turn turn, Stream(client, request, flags.n));
  std::cout << std::endl;
  std::cerr << Faint("[" + turn.Summary() + "]", STDERR_FILENO) << std::endl;
  return absl::OkStatus();
}

}  // namespace

void AddGenerate(CLI::App& app, const Addresses& addresses, Command& chosen) {
  auto flags = std::make_shared<GenerateFlags>();  // shared by the parser and the command
  CLI::App* command = app.add_subcommand("generate", "Continues a prompt")->fallthrough();
  flags->model.AddTo(*command);
  flags->sampling.AddTo(*command, 256);
  command->add_option("--prompt", flags->prompt, "the text to continue; - reads standard input")->required();
  command->add_option("-n,--n", flags->n, "continuations")->check(NumberIn(1, 128))->capture_default_str();
  command->add_option("--cache_salt", flags->cache_salt, "share cached KV only with requests of the same salt");
  command->callback([&, flags] { chosen = [&, flags] { return RunGenerate(addresses, *flags); }; });
}

}  // namespace swiftcache::services::ctl
