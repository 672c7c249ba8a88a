// SPDX-License-Identifier: Apache-2.0
// `-o json`: what the broker says, as protobuf's own JSON with the names of proto/swiftcache/v1/broker.proto. Numbers of
// 64 bits are strings there, as in every protobuf JSON.
//
//   auto output = AddOutputFlag(*command);
//   if (*output == kJson) return PrintJson(snapshot);
#pragma once

#include <google/protobuf/message.h>

#include <memory>
#include <string>

#include "absl/status/status.h"

namespace CLI {
class App;
}  // namespace CLI

namespace swiftcache::services::ctl {

inline constexpr char kTable[] = "table", kJson[] = "json";

/// Declares -o and --output; the value is kTable or kJson, set by parsing.
std::shared_ptr<std::string> AddOutputFlag(CLI::App& command);

/// One document on one line of standard output, with every field, also those that are zero.
absl::Status PrintJson(const google::protobuf::Message& message);

}  // namespace swiftcache::services::ctl
