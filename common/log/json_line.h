// SPDX-License-Identifier: Apache-2.0
// A line of the log as one JSON object. What a message begins with may be fields, which become members of their own:
//
//   std::string message = MarkField("request_id", "r1") + "finished";
//   FormatJsonLine({.severity = "INFO", .file = "relay.cc", .line = 7, .message = message});
//   // {"time":"...","severity":"INFO","file":"relay.cc","line":7,...,"request_id":"r1","message":"finished"}
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>

#include "absl/time/time.h"

namespace swiftcache {

using LogValue = std::variant<std::string_view, int64_t, double>;

/// Thread-safety: a value. Ownership: borrows all texts.
struct JsonLine {
  absl::Time time;
  std::string_view severity, file;
  int line = 0;
  int64_t thread = 0;
  std::string_view program, engine, model;  // "": left out
  std::string_view message;
};

/// With a newline at its end. Bytes that are not UTF-8 become U+FFFD. A field wins over a member of the same name.
std::string FormatJsonLine(const JsonLine& line);

/// A field as FormatJsonLine finds it at the beginning of a message. Control characters mark it, which no value has
/// once it is JSON: text that follows the first other character cannot pass for a field.
std::string MarkField(std::string_view name, const LogValue& value);

}  // namespace swiftcache
