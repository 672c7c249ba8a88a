// SPDX-License-Identifier: Apache-2.0
#include "services/ctl/complaint.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "services/did_you_mean.h"

namespace swiftcache::services::ctl {
namespace {

// "swiftcachectl lease ls", of which `innermost` is ls.
std::string CommandLine(const CLI::App& app, const CLI::App*& innermost) {
  std::string line = app.get_name();
  innermost = &app;
  while (!innermost->get_subcommands().empty()) {
    innermost = innermost->get_subcommands().back();
    absl::StrAppend(&line, " ", innermost->get_name());
  }
  return line;
}

std::vector<std::string> Subcommands(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::App* each : command.get_subcommands([](const CLI::App*) { return true; })) {
    names.push_back(each->get_name());
  }
  return names;
}

// " (did you mean --prompt "the text"?)" for a text that stands alone, of a command that takes one by a flag; else "".
std::string SuggestText(const CLI::App& command, const std::string& text) {
  for (const char* flag : {"--prompt", "--message", "--text"}) {
    const CLI::Option* option = command.get_option_no_throw(flag);
    if (option == nullptr || option->count() > 0) continue;
    return absl::StrCat(" (did you mean ", flag, " \"", absl::CHexEscape(text), "\"?)");
  }
  return "";
}

// Those of the program, too, which may follow any command.
std::vector<std::string> Flags(const CLI::App* command) {
  std::vector<std::string> flags;
  for (; command != nullptr; command = command->get_parent()) {
    for (const CLI::Option* option : command->get_options()) {
      for (const std::string& name : option->get_lnames()) flags.push_back("--" + name);
    }
  }
  return flags;
}

// REQUIRES: `unknown` is not empty. Arguments after an unknown flag may be its values, so flags alone are reported then.
std::string OfUnknown(const CLI::App& command, const std::vector<std::string>& unknown) {
  std::string what;
  for (const std::string& each : unknown) {
    if (!absl::StartsWith(each, "-")) continue;
    const std::string flag = each.substr(0, each.find('='));
    const std::vector<std::string> known = Flags(&command);
    absl::StrAppend(&what, what.empty() ? "unknown flag " : ", ", absl::CHexEscape(flag));
    if (command.get_option_no_throw(flag) != nullptr) {
      absl::StrAppend(&what, " (it follows its command)");
    } else if (std::count(known.begin(), known.end(), flag) > 0) {
      absl::StrAppend(&what, " (not of this command)");
    } else {
      absl::StrAppend(&what, DidYouMean(flag, known));
    }
  }
  if (!what.empty()) return what;
  const std::string found = absl::CHexEscape(unknown[0]);
  if (const std::vector<std::string> commands = Subcommands(command); !commands.empty()) {
    return absl::StrCat("unknown command '", found, "'", DidYouMean(found, commands),
                        ", wanted one of: ", absl::StrJoin(commands, ", "));
  }
  return absl::StrCat("unexpected argument '", found, "'", SuggestText(command, unknown[0]));
}

// "--max_tokens: found 'x', wanted a whole number" for "Could not convert: --max_tokens = x".
std::string OfValue(const CLI::App* command, const std::string& said) {
  const std::vector<std::string> parts = absl::StrSplit(absl::StripPrefix(said, "Could not convert: "), " = ");
  const CLI::Option* option = nullptr;
  for (; command != nullptr && option == nullptr; command = command->get_parent()) {
    option = command->get_option_no_throw(parts[0]);
  }
  if (option == nullptr || parts.size() < 2) return said;
  const bool whole = absl::StrContains(option->get_type_name(), "INT");
  return absl::StrCat(parts[0], ": found '", absl::CHexEscape(option->results()[0]), "', wanted a ",
                      whole ? "whole number" : "number");
}

}  // namespace

std::string Complaint(const CLI::App& app, const CLI::ParseError& error) {
  const CLI::App* command = nullptr;
  const std::string line = CommandLine(app, command);
  const std::vector<std::string> unknown = app.remaining(/*recurse=*/true);
  const std::string commands = absl::StrJoin(Subcommands(*command), ", ");
  std::string what = error.what();
  if (!unknown.empty()) {
    what = OfUnknown(*command, unknown);
  } else if (dynamic_cast<const CLI::ConversionError*>(&error) != nullptr) {
    what = OfValue(command, what);
  } else if (!commands.empty() && dynamic_cast<const CLI::RequiredError*>(&error) != nullptr) {
    what = absl::StrCat("a command is missing, wanted one of: ", commands);
  } else if (dynamic_cast<const CLI::RequiredError*>(&error) != nullptr) {
    const std::vector<const CLI::Option*> missing =
        command->get_options([](const CLI::Option* option) { return option->get_required() && option->count() == 0; });
    if (!missing.empty()) what = absl::StrCat(missing[0]->get_name(), " is required: ", missing[0]->get_description());
  }
  return absl::StrCat(app.get_name(), ": ", what, "; ", line, " --help lists ",
                      commands.empty() ? "its flags" : "commands and flags");
}

std::function<std::string(const std::string&)> NumberIn(double low, double high, bool open) {
  return [=](const std::string& text) -> std::string {
    double value = 0;
    if (!absl::SimpleAtod(text, &value) || (value >= low && value <= high && !(open && value == low))) return "";
    return absl::StrFormat("found '%s', wanted a number in %s%.10g, %.10g]", absl::CHexEscape(text), open ? "(" : "[",
                           low, high);
  };
}

bool SpeaksHttp1(const absl::Status& status) { return absl::StrContains(status.message(), "http1.x server"); }

std::string NotThatServer(const std::string& server, const std::string& address, const std::string& usual,
                          const absl::Status& status) {
  const bool http = SpeaksHttp1(status);
  return absl::StrCat("--", server, "=", address, ": ",
                      http ? "that is an HTTP port" : absl::StrCat("what answers there is no ", server),
                      "; wanted the gRPC address of ", http ? absl::StrCat("a ", server) : "one", ", as in ", usual);
}

}  // namespace swiftcache::services::ctl
