// SPDX-License-Identifier: Apache-2.0
// swiftcachectl: looks at a cluster and talks to its models. Exit codes: 0 done, 1 the cluster said no, 2 wrong usage
// (INVALID_ARGUMENT, found here or by a server).
#include <CLI/CLI.hpp>
#include <iostream>
#include <string>

#include "common/base/version.h"
#include "common/rpc/address.h"
#include "services/ctl/commands.h"
#include "services/ctl/complaint.h"
#include "services/ctl/terminal.h"
#include "services/flags.h"

namespace {

constexpr char kProgram[] = "swiftcachectl";
constexpr int kRefused = 1, kUsageError = 2;

int Complain(const CLI::App& app, const CLI::ParseError& error) {
  if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
  std::cerr << swiftcache::services::ctl::Complaint(app, error) << std::endl;
  return kUsageError;
}

// As the servers' flags check theirs.
std::string CheckAddress(const std::string& text) {
  return std::string(swiftcache::HostPort::Parse(text).status().message());
}

int Report(const absl::Status& status) {
  if (status.ok()) return 0;
  std::cout.flush();
  // A message may be a server's, which may be anybody's.
  std::cerr << kProgram << ": " << absl::StatusCodeToString(status.code()) << ": "
            << swiftcache::services::ctl::WithoutControls(std::string(status.message())) << std::endl;
  return absl::IsInvalidArgument(status) ? kUsageError : kRefused;
}

}  // namespace

int main(int argc, char** argv) {
  using namespace swiftcache::services::ctl;
  CLI::App app("Looks at a SwiftCache cluster and talks to its models.", kProgram);
  app.set_version_flag("--version", std::string(kProgram) + " " + swiftcache::kVersion);
  app.require_subcommand(1);
  Addresses addresses;
  Command chosen;
  app.add_option("--gateway", addresses.gateway, "the gateway's gRPC address")
      ->envname("SWIFTCACHE_GATEWAY")
      ->check(CheckAddress)
      ->capture_default_str();
  app.add_option("--broker", addresses.broker, "the broker's gRPC address")
      ->envname("SWIFTCACHE_BROKER")
      ->check(CheckAddress)
      ->capture_default_str();
  AddStatus(app, addresses, chosen);
  AddTop(app, addresses, chosen);
  AddLease(app, addresses, chosen);
  AddChat(app, addresses, chosen);
  AddGenerate(app, addresses, chosen);
  AddTokenize(app, addresses, chosen);
  AddDetokenize(app, addresses, chosen);
  AddHealth(app, addresses, chosen);
  AddUp(app, argv[0], chosen);
  AddBench(app, addresses, chosen);
  try {
    app.parse(swiftcache::services::ParserArguments(argc, argv));
  } catch (const CLI::ParseError& error) {
    return Complain(app, error);
  }
  absl::Status status = chosen();
  if (status.ok() && !std::cout.flush()) {
    status = absl::DataLossError("standard output did not take all of it: its reader is gone, or the disk is full");
  }
  return Report(status);
}
