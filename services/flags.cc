// SPDX-License-Identifier: Apache-2.0
#include "services/flags.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "common/base/version.h"
#include "common/rpc/address.h"
#include "services/did_you_mean.h"
#include "services/flag_values.h"

namespace swiftcache::services {
namespace {

constexpr int kUsageError = 2;
constexpr char kCommonPrefix[] = "SWIFTCACHE_";

// What is behind a program's prefix where Kubernetes tells of a service that has the program's name.
bool TellsOfService(const std::string& rest, absl::string_view value) {
  return absl::EndsWith(rest, "SERVICE_HOST") || absl::StrContains(rest, "SERVICE_PORT") ||
         absl::StrContains(rest, "_TCP") || absl::StrContains(rest, "_UDP") ||
         (absl::EndsWith(rest, "PORT") && absl::StrContains(value, "://"));
}

// A value in [min, max], or an error that shows the range as the user would write it.
template <typename T, typename Format, typename Value>
absl::Status SetInRange(absl::StatusOr<T> parsed, T min, T max, Format format, Value* value) {
  if (!parsed.ok()) return parsed.status();
  if (*parsed < min || *parsed > max) {
    return absl::InvalidArgumentError(
        absl::StrCat("found ", format(*parsed), ", wanted ", format(min), " to ", format(max)));
  }
  *value = *parsed;
  return absl::OkStatus();
}

// "--max_tokens=a-b" for "--max-tokens=a-b": both are one flag. What does not begin with dashes stays as it is.
std::string WithUnderscores(std::string argument) {
  if (!absl::StartsWith(argument, "--")) return argument;
  const auto end = argument.begin() + static_cast<std::ptrdiff_t>(std::min(argument.find('='), argument.size()));
  std::replace(argument.begin() + 2, end, '-', '_');
  return argument;
}

// "swiftcache-engine": "SWIFTCACHE_ENGINE_".
std::string EnvironmentPrefix(std::string program) {
  std::replace(program.begin(), program.end(), '-', '_');
  return absl::StrCat(absl::AsciiStrToUpper(program), "_");
}

std::function<std::string()> ShowText(const std::string* value) {
  return [value] { return *value; };
}

std::string ShowInteger(int64_t n) { return absl::StrCat(n); }

bool StandsAlone(const std::string& argument) { return !absl::StartsWith(argument, "-"); }

// The one argument that belongs to no flag, or "".
std::string LoneValue(const std::vector<std::string>& extras) {
  return extras.size() == 1 && StandsAlone(extras[0]) ? extras[0] : "";
}

}  // namespace

Flags::Flags(const std::string& program, const std::string& description)
    : program_(program), app_(std::make_unique<CLI::App>(description, program)) {
  app_->footer(absl::StrCat("A flag's variable may also be named ", EnvironmentPrefix(program),
                            "...: for this program alone, before SWIFTCACHE_... . An empty one says nothing.\n"
                            "Dashes in flags are underscores."));
  app_->set_version_flag("--version", program + " " + kVersion);
  app_->option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
}

Flags::~Flags() = default;

CLI::Option* Flags::Add(const std::string& name, Getter show, const std::string& help, Setter set) {
  const std::string flag = absl::AsciiStrToUpper(name), own = EnvironmentPrefix(program_) + flag;
  const char* const own_value = std::getenv(own.c_str());
  const std::string variable = own_value != nullptr && *own_value != '\0' ? own : kCommonPrefix + flag;
  const CLI::callback_t callback = [this, name = "--" + name, variable, set = std::move(set)](const auto& values) {
    const absl::Status status = set(values.back());
    if (status.ok()) return true;
    const std::vector<CLI::Option*> typed = app_->parse_order();
    const bool is_typed = std::find(typed.begin(), typed.end(), app_->get_option(name)) != typed.end();
    throw CLI::ValidationError(is_typed ? name : absl::StrCat("the environment variable ", variable),
                               std::string(status.message()));
  };
  CLI::Option* option = app_->add_option("--" + name, callback, help);
  option->envname(variable)->type_name("");
  const std::string by_default = show();
  if (!by_default.empty()) option->default_str(by_default);
  settings_.push_back({name, by_default, std::move(show)});
  return option;
}

void Flags::Text(const std::string& name, std::string* value, const std::string& help) {
  Add(name, ShowText(value), help, [value](const std::string& text) {
    *value = text;
    return absl::OkStatus();
  });
}

void Flags::Name(const std::string& name, std::string* value, const std::string& help) {
  Add(name, ShowText(value), help, [value](const std::string& text) {
    ASSIGN_OR_RETURN(*value, ParseName(text));
    return absl::OkStatus();
  });
}

void Flags::Required(const std::string& name, std::string* value, const std::string& help) {
  Text(name, value, help);
  app_->get_option("--" + name)->required();
}

void Flags::Choice(const std::string& name, std::string* value, std::vector<std::string> choices,
                   const std::string& help) {
  const std::string shown = absl::StrJoin(choices, "|");
  Add(name, ShowText(value), help + " (" + shown + ")", [=, choices = std::move(choices)](const std::string& text) {
    for (const std::string& choice : choices) {
      if (choice != text) continue;
      *value = text;
      return absl::OkStatus();
    }
    return absl::InvalidArgumentError(absl::StrCat("found '", absl::CHexEscape(text), "', wanted one of ", shown));
  });
}

void Flags::Address(const std::string& name, std::string* value, const std::string& help, bool may_be_empty) {
  Add(name, ShowText(value), help, [=](const std::string& text) -> absl::Status {
    if (!text.empty() || !may_be_empty) RETURN_IF_ERROR(HostPort::Parse(text).status());
    *value = text;
    return absl::OkStatus();
  });
}

void Flags::Integer(const std::string& name, int64_t* value, int64_t min, int64_t max, const std::string& help) {
  Add(
      name, [value] { return ShowInteger(*value); }, help,
      [=](const std::string& text) { return SetInRange(ParseInteger(text), min, max, ShowInteger, value); });
}

void Flags::Bytes(const std::string& name, int64_t* value, int64_t min, int64_t max, const std::string& help) {
  Add(
      name, [value] { return FormatBytes(*value); }, help,
      [=](const std::string& text) { return SetInRange(ParseBytes(text), min, max, FormatBytes, value); });
}

void Flags::Bytes(const std::string& name, std::optional<int64_t>* value, int64_t min, int64_t max,
                  const std::string& help) {
  Add(
      name, [value] { return value->has_value() ? FormatBytes(**value) : ""; }, help,
      [=](const std::string& text) { return SetInRange(ParseBytes(text), min, max, FormatBytes, value); });
}

void Flags::Fraction(const std::string& name, double* value, const std::string& help) {
  Add(
      name, [value] { return absl::StrCat(*value); }, help,
      [value](const std::string& text) -> absl::Status {
        ASSIGN_OR_RETURN(*value, ParseFraction(text));
        return absl::OkStatus();
      });
}

void Flags::Duration(const std::string& name, absl::Duration* value, absl::Duration min, absl::Duration max,
                     const std::string& help) {
  Add(
      name, [value] { return absl::FormatDuration(*value); }, help,
      [=](const std::string& text) { return SetInRange(ParseDuration(text), min, max, absl::FormatDuration, value); });
}

void Flags::Switch(const std::string& name, bool* value, const std::string& help) {
  const auto set = [value](const std::string& text) -> absl::Status {
    ASSIGN_OR_RETURN(*value, text.empty() ? absl::StatusOr<bool>(true) : ParseSwitch(text));
    return absl::OkStatus();
  };
  CLI::Option* const option = Add(
      name, [value] { return *value ? "true" : "false"; }, help, set);
  option->expected(0, 1);
  switches_.push_back({option, option->get_default_str()});
}

// A flag that does not exist is reported before one that is missing: a misspelt --model is missing, too.
int Flags::Complain(const CLI::ParseError& error) const {
  std::string what = error.what();
  const std::vector<std::string> extras = app_->remaining(true);
  const bool is_missing = dynamic_cast<const CLI::RequiredError*>(&error) != nullptr;
  if (const std::string value = LoneValue(extras); is_missing && !value.empty()) {
    absl::StrAppend(&what, " (did you mean ", what.substr(0, what.find(' ')), "=", absl::CHexEscape(value), "?)");
  } else if (dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr || (is_missing && !extras.empty())) {
    what = "unknown flag or argument:";
    for (const std::string& extra : extras) absl::StrAppend(&what, " ", absl::CHexEscape(extra));
    const auto flag = std::find_if_not(extras.begin(), extras.end(), StandsAlone);
    if (flag != extras.end()) absl::StrAppend(&what, DidYouMean(flag->substr(0, flag->find('=')), Names("--")));
  } else if (is_missing) {
    for (const CLI::Option* option : app_->get_options()) {
      if (option->get_required() && option->count() == 0) absl::StrAppend(&what, ": ", option->get_description());
    }
  }
  std::cerr << program_ << ": " << what << "; " << program_ << " --help lists the flags" << std::endl;
  return kUsageError;
}

std::vector<std::string> Flags::Names(const std::string& prefix) const {
  std::vector<std::string> names;
  for (const Setting& setting : settings_) names.push_back(prefix + setting.name);
  return names;
}

// What SWIFTCACHE_... names may be another program's flag: it is a mistake if it is of this program alone, and worth a
// word if a flag is called nearly so.
bool Flags::CheckVariables() const {
  const std::string own = EnvironmentPrefix(program_);
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string name(*variable, std::string_view(*variable).find('='));
    const std::string prefix = absl::StartsWith(name, own) ? own : kCommonPrefix;
    if (!absl::StartsWith(name, prefix)) continue;
    if (prefix == own && TellsOfService(name.substr(own.size()), *variable + name.size() + 1)) continue;
    const std::string flag = absl::AsciiStrToLower(name.substr(prefix.size()));
    const std::vector<std::string> flags = Names("");
    if (std::count(flags.begin(), flags.end(), flag) > 0) continue;
    const std::string nearest = Nearest(flag, flags);
    if (prefix != own && nearest.empty()) continue;
    std::cerr << program_ << ": the environment variable " << name << " is none of its flags";
    if (!nearest.empty()) std::cerr << " (did you mean " << prefix << absl::AsciiStrToUpper(nearest) << "?)";
    std::cerr << (prefix == own ? absl::StrCat("; ", program_, " --help lists them") : "; it says nothing here")
              << std::endl;
    if (prefix == own) return false;
  }
  return true;
}

std::optional<int> Flags::Parse(int argc, const char* const* argv) {
  // CLI11 takes what --help shows as a flag's default for the value of a flag that stands without one.
  for (const auto& [option, by_default] : switches_) option->default_str("true");
  try {
    app_->parse(ParserArguments(argc, argv));
    return CheckVariables() ? std::nullopt : std::optional<int>(kUsageError);
  } catch (const CLI::ParseError& error) {
    for (const auto& [option, by_default] : switches_) option->default_str(by_default);
    // Success is CLI11's way to say that --help or --version was asked for.
    return error.get_exit_code() == 0 ? app_->exit(error) : Complain(error);
  }
}

std::string Flags::Changed() const {
  std::vector<std::string> changed;
  for (const Setting& setting : settings_) {
    const std::string value = setting.show();
    if (value != setting.by_default) changed.push_back(absl::StrCat(setting.name, "=", absl::CHexEscape(value)));
  }
  return absl::StrJoin(changed, " ");
}

std::vector<std::string> ParserArguments(int argc, const char* const* argv) {
  std::vector<std::string> stack;
  for (int i = argc - 1; i > 0; --i) {
    std::string argument = WithUnderscores(argv[i]);
    if (absl::StartsWith(argument, "--") && argument.find('=') == argument.size() - 1) {
      stack.push_back("");
      argument.pop_back();
    }
    stack.push_back(std::move(argument));
  }
  return stack;
}

}  // namespace swiftcache::services
