// SPDX-License-Identifier: Apache-2.0
#include "services/log_flags.h"

namespace swiftcache::services {
namespace {

constexpr LogLevel kLevels[] = {LogLevel::kError, LogLevel::kWarning, LogLevel::kInfo, LogLevel::kVerbose};

}  // namespace

void LogFlags::Declare(Flags& flags) {
  flags.Choice("log_format", &format, {"text", "json"}, "of the log on standard error; json: one object a line");
  flags.Choice("log_level", &level, {Name(kLevels[0]), Name(kLevels[1]), Name(kLevels[2]), Name(kLevels[3])},
               "what is logged; verbose: also what gRPC says; SIGUSR1 logs more, SIGUSR2 less, while the server runs");
}

LogOptions LogFlags::Options(LogOptions options) const {
  options.json = format == "json";
  for (const LogLevel each : kLevels) {
    if (level == Name(each)) options.level = each;
  }
  return options;
}

}  // namespace swiftcache::services
