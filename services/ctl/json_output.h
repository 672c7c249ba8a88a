// SPDX-License-Identifier: Apache-2.0
// `-o json`: for programs. Field names and units are this file's promise, whatever the tables for people look like:
// names are snake_case and end in their unit (`_bytes`, `_tokens`, `_seconds`) unless they count things; what there is
// none of is null. Identities are texts, as in protobuf's JSON: jq 1.6 and JavaScript read a number of 64 bits as a
// double, which has 53. services/README.md lists all names.
//
//   auto output = AddOutputFlag(*command);
//   if (*output == kJson) std::cout << StatusJson(addresses.broker, cluster) << std::endl;
#pragma once

#include <memory>
#include <string>

#include "services/ctl/cluster_table.h"

namespace CLI {
class App;
}  // namespace CLI

namespace swiftcache::services::ctl {

inline constexpr char kTable[] = "table", kJson[] = "json";

/// Declares -o and --output; the value is kTable or kJson, set by parsing.
std::shared_ptr<std::string> AddOutputFlag(CLI::App& command);

// One object on one line, without its end. `broker`: its address.

/// {"broker", "engines"}
std::string StatusJson(const std::string& broker, const ClusterTable& cluster);
/// {"broker", "leases", "limits"}
std::string LeasesJson(const std::string& broker, const ClusterTable& cluster);
/// {"broker", "engines", "leases", "limits"}
std::string TopJson(const std::string& broker, const ClusterTable& cluster);

}  // namespace swiftcache::services::ctl
