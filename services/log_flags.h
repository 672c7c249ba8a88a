// SPDX-License-Identifier: Apache-2.0
// The flags of every server's log.
//
//   LogFlags log;
//   log.Declare(flags);
//   ...
//   StartLogging(log.Options({.program = argv[0]}));
#pragma once

#include <string>

#include "common/log/log.h"
#include "services/flags.h"

namespace swiftcache::services {

/// Thread-safety: a value.
struct LogFlags {
  std::string format = "text", level = "info";

  void Declare(Flags& flags);
  /// `options` with what the flags say.
  LogOptions Options(LogOptions options) const;
};

}  // namespace swiftcache::services
