// SPDX-License-Identifier: Apache-2.0
// swiftcachectl chat: holds a conversation, from --message flags, the terminal or a file.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <iostream>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "services/ctl/client.h"
#include "services/ctl/commands.h"
#include "services/ctl/sampling_flags.h"
#include "services/ctl/terminal.h"

namespace swiftcache::services::ctl {
namespace {

struct ChatFlags {
  ModelFlags model;
  SamplingFlags sampling;
  std::vector<std::string> messages;
  std::string system, cache_salt;
  bool plain_content = false;
};

// The conversation so far; each turn sends all of it, and the engine's cache makes that cheap.
class Conversation {
 public:
  Conversation(Client& client, const ChatFlags& flags, const std::string& model)
      : client_(client), system_(flags.system) {
    request_.set_model(model);
    *request_.mutable_sampling() = flags.sampling.ToProto();
    request_.set_cache_salt(flags.cache_salt);
    request_.set_conversation_id(absl::StrCat("ctl-", std::random_device()(), std::random_device()()));
    request_.mutable_chat()->set_plain_content(flags.plain_content);
    Reset();
  }

  void Reset() {
    request_.mutable_chat()->clear_messages();
    if (!system_.empty()) Add("system", system_);
  }

  absl::Status Say(const std::string& message) {
    Add("user", message);
    std::cout << Strong(WithoutControls(request_.model()) + "> ") << std::flush;
    absl::StatusOr<Turn> turn =
        client_.Generate(request_, [](const v1::GenerateResponse& response) { Show(response.text()); });
    std::cout << "\n";
    if (!turn.ok()) {
      request_.mutable_chat()->mutable_messages()->RemoveLast();
      return turn.status();
    }
    Add("assistant", turn->text);
    std::cout << Faint("[" + turn->Summary() + "]") << "\n" << std::endl;
    return absl::OkStatus();
  }

 private:
  void Add(const std::string& role, const std::string& content) {
    v1::ChatMessage& message = *request_.mutable_chat()->add_messages();
    message.set_role(role);
    message.set_content(content);
  }

  Client& client_;
  const std::string system_;
  v1::GenerateRequest request_;
};

// Whether a person types, for whom a prompt is shown and errors are printed; otherwise the input is a file or a
// program.
bool Typed() { return isatty(STDIN_FILENO) == 1; }

// The next line of the user, or nothing at the end.
std::optional<std::string> Ask() {
  if (Typed()) std::cout << Strong("you> ") << std::flush;
  std::string line;
  if (std::getline(std::cin, line)) return line;
  if (Typed()) std::cout << std::endl;
  return std::nullopt;
}

// The shell's prompt begins its own line after ^C, which then ends the process as it would have.
void EndLineAtInterrupt() {
  std::signal(SIGINT, [](int signal) {
    (void)!write(STDOUT_FILENO, "\n", 1);
    std::signal(signal, SIG_DFL);
    std::raise(signal);
  });
}

// If a person types, an error ends the turn, not the conversation.
absl::Status Talk(Conversation& conversation) {
  if (Typed()) EndLineAtInterrupt();
  if (Typed()) std::cout << Faint("Ctrl-D ends, /reset forgets the conversation.") << "\n";
  while (std::optional<std::string> line = Ask()) {
    if (line->empty()) continue;
    if (*line == "/reset") {
      conversation.Reset();
      continue;
    }
    const absl::Status status = conversation.Say(*line);
    if (!status.ok() && !Typed()) return status;
    if (!status.ok()) {
      std::cout << absl::StatusCodeToString(status.code()) << ": " << WithoutControls(std::string(status.message()))
                << "\n"
                << std::endl;
    }
  }
  return absl::OkStatus();
}

absl::Status RunChat(const Addresses& addresses, const ChatFlags& flags) {
  Client client(addresses.gateway);
  ASSIGN_OR_RETURN(const std::string model, client.ResolveModel(flags.model.model, flags.model.wait()));
  Conversation conversation(client, flags, model);
  if (flags.messages.empty()) return Talk(conversation);
  for (const std::string& message : flags.messages) {
    std::cout << Strong("you> ") << Shortened(message) << "\n";
    RETURN_IF_ERROR(conversation.Say(message));
  }
  return absl::OkStatus();
}

}  // namespace

void AddChat(CLI::App& app, const Addresses& addresses, Command& chosen) {
  auto flags = std::make_shared<ChatFlags>();  // shared by the parser and the command
  CLI::App* command =
      app.add_subcommand("chat", "Talks to a model; without --message a line of standard input is a turn")
          ->fallthrough();
  flags->model.AddTo(*command);
  flags->sampling.AddTo(*command, 512);
  command
      ->add_option("--message", flags->messages, "a message of the user; several hold a conversation of several turns")
      ->allow_extra_args(false);
  command->add_option("--system", flags->system, "the system message");
  command->add_option("--cache_salt", flags->cache_salt, "share cached KV only with requests of the same salt");
  command->add_flag("--plain_content", flags->plain_content, "text that looks like a special token stays text");
  command->callback([&, flags] { chosen = [&, flags] { return RunChat(addresses, *flags); }; });
}

}  // namespace swiftcache::services::ctl
