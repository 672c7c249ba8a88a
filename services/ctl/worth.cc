// SPDX-License-Identifier: Apache-2.0
#include "services/ctl/worth.h"

#include <algorithm>
#include <limits>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/units.h"
#include "services/ctl/table.h"

namespace swiftcache::services::ctl {
namespace {

void Add(int64_t& sum, int64_t more) {
  sum = CheckedAdd(sum, more).value_or(more < 0 ? std::numeric_limits<int64_t>::min()
                                                : std::numeric_limits<int64_t>::max());
}

std::string ModelOf(const ClusterTable& cluster, const std::string& engine) {
  const auto found = cluster.engines().find(engine);
  return found == cluster.engines().end() ? engine : found->second.info().model_name();
}

std::string ShowByteHours(int64_t byte_seconds) { return ShowBytes(byte_seconds / 3600); }

struct Ends {
  int64_t all = 0, fenced = 0;
};

Ends EndsOf(const Worth::Pair& pair, const std::string& reason) {
  Ends ends;
  for (const auto& [why, ended] : pair.ended) {
    if (why != reason && !reason.empty()) continue;
    Add(ends.all, ended.released());
    Add(ends.all, ended.fenced());
    Add(ends.fenced, ended.fenced());
  }
  return ends;
}

std::vector<std::string> ModelRow(const Worth::Model& model) {
  return {model.model,
          ShowByteHours(model.lent_byte_seconds),
          ShowByteHours(model.borrowed_byte_seconds),
          absl::StrCat(model.saved_tokens),
          absl::StrCat(model.again_for_loans_tokens),
          absl::StrCat(model.again_for_losses_tokens),
          absl::StrFormat("%+d", model.net_tokens())};
}

}  // namespace

int64_t Worth::Model::net_tokens() const {
  int64_t again = again_for_loans_tokens;
  Add(again, again_for_losses_tokens);
  int64_t net = saved_tokens;
  Add(net, -std::max(again, -std::numeric_limits<int64_t>::max()));
  return net;
}

Worth::Worth(const ClusterTable& cluster) {
  std::map<std::pair<std::string, std::string>, Pair> pairs;
  std::map<std::string, Model> models;
  for (const auto& [name, engine] : cluster.engines()) {
    const v1::EngineLoad& load = engine.load();
    const std::string& donor = engine.info().model_name();
    if (load.saved_tokens() != 0 || load.again_for_loans_tokens() != 0 || load.again_for_losses_tokens() != 0) {
      Add(models[donor].saved_tokens, load.saved_tokens());
      Add(models[donor].again_for_loans_tokens, load.again_for_loans_tokens());
      Add(models[donor].again_for_losses_tokens, load.again_for_losses_tokens());
    }
    for (const v1::LeaseAccount& account : load.accounts()) {
      Pair& pair = pairs[{donor, account.borrower_model()}];
      Add(pair.lent_byte_seconds, account.lent_byte_seconds());
      Add(pair.leases, account.leases());
      Add(models[donor].lent_byte_seconds, account.lent_byte_seconds());
      Add(models[account.borrower_model()].borrowed_byte_seconds, account.lent_byte_seconds());
      for (const v1::LeaseAccount::Ended& ended : account.ended()) {
        int64_t released = pair.ended[ended.reason()].released(), fenced = pair.ended[ended.reason()].fenced();
        Add(released, ended.released());
        Add(fenced, ended.fenced());
        pair.ended[ended.reason()].set_released(released);
        pair.ended[ended.reason()].set_fenced(fenced);
      }
    }
  }
  for (const auto& [id, lease] : cluster.leases()) {
    if (lease.state() == v1::OFFERED) continue;
    Add(pairs[{ModelOf(cluster, lease.donor()), lease.borrower_model()}].lent_bytes, lease.num_bytes());
  }
  for (auto& [names, pair] : pairs) {
    std::tie(pair.donor_model, pair.borrower_model) = names;
    pairs_.push_back(std::move(pair));
  }
  for (auto& [name, model] : models) {
    model.model = name;
    models_.push_back(std::move(model));
  }
}

std::string Worth::ShowPairs() const {
  if (pairs_.empty()) return "";
  Table table({{"DONOR MODEL"},
               {"BORROWER MODEL"},
               {"LENT NOW", Table::kRight},
               {"BYTE HOURS", Table::kRight},
               {"LEASES", Table::kRight},
               {"NEEDED BACK", Table::kRight},
               {"OPERATOR", Table::kRight},
               {"LIMIT", Table::kRight},
               {"FAIRNESS", Table::kRight},
               {"GIVEN BACK", Table::kRight},
               {"OTHER ENDS", Table::kRight},
               {"FENCED", Table::kRight}});
  for (const Pair& pair : pairs_) {
    int64_t other = EndsOf(pair, "shutdown").all;
    Add(other, EndsOf(pair, "borrower_gone").all);
    Add(other, EndsOf(pair, "broker").all);
    table.Add({pair.donor_model, pair.borrower_model, ShowBytes(pair.lent_bytes), ShowByteHours(pair.lent_byte_seconds),
               absl::StrCat(pair.leases), absl::StrCat(EndsOf(pair, "need").all),
               absl::StrCat(EndsOf(pair, "operator").all), absl::StrCat(EndsOf(pair, "limit").all),
               absl::StrCat(EndsOf(pair, "fairness").all), absl::StrCat(EndsOf(pair, "given_back").all),
               absl::StrCat(other), absl::StrCat(EndsOf(pair, "").fenced)});
  }
  return table.ToString();
}

std::string Worth::ShowModels() const {
  if (models_.empty()) return "";
  Table table({{"MODEL"},
               {"LENT, BYTE HOURS", Table::kRight},
               {"BORROWED, BYTE HOURS", Table::kRight},
               {"TOKENS SAVED", Table::kRight},
               {"AGAIN FOR LOANS", Table::kRight},
               {"AGAIN FOR LOSSES", Table::kRight},
               {"NET TOKENS", Table::kRight}});
  Model all{.model = "all"};
  for (const Model& model : models_) {
    table.Add(ModelRow(model));
    Add(all.lent_byte_seconds, model.lent_byte_seconds);
    Add(all.borrowed_byte_seconds, model.borrowed_byte_seconds);
    Add(all.saved_tokens, model.saved_tokens);
    Add(all.again_for_loans_tokens, model.again_for_loans_tokens);
    Add(all.again_for_losses_tokens, model.again_for_losses_tokens);
  }
  table.Add(ModelRow(all));
  return table.ToString();
}

}  // namespace swiftcache::services::ctl
