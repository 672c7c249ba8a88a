// SPDX-License-Identifier: Apache-2.0
// The subcommands of swiftcachectl. Each adds itself to the app; parsing chooses one, which main then runs.
//
//   Command chosen;
//   AddStatus(app, addresses, chosen);
//   app.parse(argc, argv);
//   absl::Status status = chosen();
#pragma once

#include <functional>
#include <string>

#include "absl/status/status.h"

namespace CLI {
class App;
}  // namespace CLI

namespace swiftcache::services::ctl {

/// Where the cluster is. Filled by parsing; commands read it when they run.
struct Addresses {
  std::string gateway = "127.0.0.1:50051";
  std::string broker = "127.0.0.1:50050";
};

/// Prints its results on standard output; an error is main's to print.
using Command = std::function<absl::Status()>;

// `addresses` and `chosen` are borrowed and outlive the app.
void AddStatus(CLI::App& app, const Addresses& addresses, Command& chosen);
void AddTop(CLI::App& app, const Addresses& addresses, Command& chosen);
void AddLease(CLI::App& app, const Addresses& addresses, Command& chosen);
void AddChat(CLI::App& app, const Addresses& addresses, Command& chosen);
void AddGenerate(CLI::App& app, const Addresses& addresses, Command& chosen);
void AddTokenize(CLI::App& app, const Addresses& addresses, Command& chosen);
void AddDetokenize(CLI::App& app, const Addresses& addresses, Command& chosen);
void AddHealth(CLI::App& app, const Addresses& addresses, Command& chosen);
/// `program`: what this process was started by.
void AddUp(CLI::App& app, const std::string& program, Command& chosen);
void AddBench(CLI::App& app, const Addresses& addresses, Command& chosen);

}  // namespace swiftcache::services::ctl
