// SPDX-License-Identifier: Apache-2.0
// swiftcachectl lease: what is on lease, a limit for a model, and the end of a lease.
#include <CLI/CLI.hpp>
#include <cstdint>
#include <iostream>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "services/ctl/broker_connection.h"
#include "services/ctl/cluster_table.h"
#include "services/ctl/commands.h"
#include "services/ctl/json_output.h"
#include "services/ctl/table.h"
#include "services/ctl/terminal.h"
#include "services/ctl/worth.h"
#include "services/flag_values.h"

namespace swiftcache::services::ctl {
namespace {

constexpr char kNoLimit[] = "none";

constexpr char kLeaseColumns[] =
    "Leases, as the broker has them now:\n"
    "  STATE             OFFERED: the donor has not accepted it yet; GRANTED: the borrower may use it; REVOKING: the "
    "broker\n"
    "                    has asked the donor to take it back\n"
    "  BLOCKS            first and last of the donor's blocks\n"
    "  BORROWER BLOCKS   how many of the borrower's blocks these hold; each model has its own size of a block\n"
    "  EPOCH             which grant of this memory it is; -: not granted\n"
    "Limits, where there are any (lease limit):\n"
    "  BORROWED          by all engines of the model together; ENGINES: how many of them there are\n"
    "What sharing was worth, since the start of each engine that is there, but for LENT NOW as of its last heartbeat:\n"
    "  LENT NOW          bytes of the leases above that are not merely offered; LEASES: how many were granted so far\n"
    "  BYTE HOURS        bytes on lease times the hours that they were; lent and borrowed are one number, the donor's\n"
    "  NEEDED BACK       leases that ended as their donor needed its memory; OPERATOR: by lease revoke; LIMIT: by "
    "lease\n"
    "                    limit; FAIRNESS: for another borrower; GIVEN BACK: by the borrower, unasked; OTHER ENDS: "
    "donor\n"
    "                    or borrower ended, or the broker refused them\n"
    "  FENCED            of all ends: without the borrower\n"
    "  TOKENS SAVED      of prompts: found, and would not have been in the engine's own memory\n"
    "  AGAIN FOR LOANS   tokens computed again that its own memory would have had, had none of it been lent\n"
    "  AGAIN FOR LOSSES  tokens computed again that its own memory would have had, and that lay in a lease that ended\n"
    "  NET TOKENS        saved, less both: above 0, sharing pays";

constexpr char kExamples[] =
    "For example:\n"
    "  swiftcachectl lease limit chat 512MiB   engines of model chat borrow at most so much together; none: no limit\n"
    "  swiftcachectl lease revoke 7            the donor of lease 7, as lease ls numbers it, takes it back";

absl::Status RunList(const Addresses& addresses, const std::string& output) {
  ASSIGN_OR_RETURN(const v1::WatchResponse first, BrokerConnection(addresses.broker).Snapshot());
  ClusterTable cluster;
  cluster.Apply(first);
  if (output == kJson) {
    std::cout << LeasesJson(addresses.broker, cluster) << std::endl;
    return absl::OkStatus();
  }
  std::cout << Strong(absl::StrCat("broker ", addresses.broker)) << ": " << cluster.Summary() << "\n";
  if (!cluster.leases().empty()) std::cout << WithoutControls(cluster.ShowLeases());
  const Worth worth(cluster);
  for (const std::string& table : {cluster.ShowLimits(), worth.ShowPairs(), worth.ShowModels()}) {
    if (!table.empty()) std::cout << "\n" << WithoutControls(table);
  }
  std::cout << std::flush;
  return absl::OkStatus();
}

// A limit may be set before its model is served, but a misspelt name should be noticed.
void WarnOfUnserved(const std::string& model, const v1::WatchResponse::Snapshot& snapshot) {
  std::set<std::string> served;
  for (const v1::EngineStatus& engine : snapshot.engines()) served.insert(engine.info().model_name());
  if (served.count(model) > 0) return;
  std::cerr << WithoutControls(absl::StrCat("warning: no engine serves model ", model, " at present; served: ",
                                            served.empty() ? "no model" : absl::StrJoin(served, ", "),
                                            "; the limit holds once one does"))
            << std::endl;
}

std::string ShowLimit(std::optional<int64_t> bytes) {
  if (!bytes.has_value()) return "may borrow without limit";
  return *bytes == 0 ? "borrows nothing" : absl::StrCat("may borrow at most ", ShowBytes(*bytes));
}

absl::Status RunLimit(const Addresses& addresses, const std::string& model, const std::string& limit) {
  std::optional<int64_t> bytes;
  if (limit != kNoLimit) {
    const absl::StatusOr<int64_t> parsed = ParseBytes(limit);
    if (!parsed.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("the limit of model ", model, ": ", parsed.status().message(),
                                                     ", 0 (it borrows nothing) or none (no limit)"));
    }
    bytes = *parsed;
  }
  BrokerConnection broker(addresses.broker);
  RETURN_IF_ERROR(broker.LimitLease(model, bytes));
  std::cout << "model " << model << " " << ShowLimit(bytes)
            << "; engines that share bring this to a broker that restarts" << std::endl;
  const absl::StatusOr<v1::WatchResponse> first = broker.Snapshot();
  if (first.ok()) WarnOfUnserved(model, first->snapshot());  // the limit is set even if this fails
  return absl::OkStatus();
}

// The model that borrows `lease`; "MODEL" where that cannot be seen.
std::string BorrowerModel(const v1::WatchResponse::Snapshot& snapshot, int64_t lease) {
  for (const v1::Lease& each : snapshot.leases()) {
    if (each.lease_id() == lease) return each.borrower_model();
  }
  return "MODEL";
}

absl::Status RunRevoke(const Addresses& addresses, const std::vector<int64_t>& leases) {
  BrokerConnection broker(addresses.broker);
  const absl::StatusOr<v1::WatchResponse> before = broker.Snapshot();
  std::set<std::string> models;
  absl::Status ended;
  size_t num_ended = 0;
  for (const int64_t lease : leases) {
    const absl::Status status = broker.RevokeLease(lease);
    if (absl::IsNotFound(status)) {  // it may have ended since it was listed
      ended = status;
      ++num_ended;
      if (leases.size() > 1) std::cerr << WithoutControls(std::string(status.message())) << std::endl;
      continue;
    }
    RETURN_IF_ERROR(status);
    std::cout << "lease " << lease << " is being revoked by its donor" << std::endl;
    models.insert(before.ok() ? BorrowerModel(before->snapshot(), lease) : "MODEL");
  }
  for (const std::string& model : models) {
    std::cout << WithoutControls(
                     absl::StrCat("the borrower leases again when it needs memory; swiftcachectl lease limit ", model,
                                  " 0 prevents it"))
              << std::endl;
  }
  if (num_ended == 0 || leases.size() == 1) return ended;
  const std::string which = num_ended == leases.size() ? "all" : absl::StrCat(num_ended);
  return absl::NotFoundError(absl::StrCat("unknown or ended: ", which, " of these ", leases.size(),
                                          " leases; swiftcachectl lease ls shows those that have not ended"));
}

// Of `lease revoke`.
std::string CheckLease(const std::string& text) {
  const absl::StatusOr<int64_t> number = ParseInteger(text);
  if (number.ok() && *number > 0) return "";
  return absl::StrCat("found '", text, "', wanted the number of a lease, as swiftcachectl lease ls shows them");
}

}  // namespace

void AddLease(CLI::App& app, const Addresses& addresses, Command& chosen) {
  CLI::App* lease = app.add_subcommand("lease", "Lists, limits and revokes leases of KV memory")->fallthrough();
  lease->require_subcommand(1);
  lease->footer(kExamples);

  CLI::App* list =
      lease
          ->add_subcommand("ls",
                           "Lists the leases, who lends which blocks to whom, the limits, and what sharing was worth")
          ->fallthrough();
  list->footer(kLeaseColumns);
  const auto output = AddOutputFlag(*list);
  list->callback(
      [&addresses, &chosen, output] { chosen = [&addresses, output] { return RunList(addresses, *output); }; });

  CLI::App* limit = lease->add_subcommand("limit", "Limits what a model may borrow; leases over it are revoked");
  limit->fallthrough();
  auto model = std::make_shared<std::string>(), bytes = std::make_shared<std::string>();
  limit->add_option("model", *model, "name of the model")->required();
  limit->add_option("bytes", *bytes, "for example 512MiB; 0: it borrows nothing; none: no limit")->required();
  limit->callback([&addresses, &chosen, model, bytes] {
    chosen = [&addresses, model, bytes] { return RunLimit(addresses, *model, *bytes); };
  });

  CLI::App* revoke =
      lease
          ->add_subcommand("revoke", "Asks the donors of leases to take them back; who needs memory may lease it again")
          ->fallthrough();
  auto ids = std::make_shared<std::vector<int64_t>>();
  revoke->add_option("lease", *ids, "numbers, as lease ls shows them")->required()->check(CheckLease);
  revoke->callback([&addresses, &chosen, ids] { chosen = [&addresses, ids] { return RunRevoke(addresses, *ids); }; });
}

}  // namespace swiftcache::services::ctl
