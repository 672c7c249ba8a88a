// SPDX-License-Identifier: Apache-2.0
#include "services/ctl/cluster_table.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "services/ctl/table.h"

namespace swiftcache::services::ctl {
namespace {

std::string Percent(int64_t part, int64_t whole) {
  if (whole == 0) return "-";
  return absl::StrFormat("%.0f%%", 100.0 * static_cast<double>(part) / static_cast<double>(whole));
}

std::string ShowReserve(const v1::EngineInfo& engine) {
  if (!ClusterTable::Lends(engine)) return "all";
  return engine.never_lent_blocks() == 0 ? "-" : ShowBytes(engine.never_lent_blocks() * engine.kv().block_bytes());
}

std::vector<std::string> EngineRow(const v1::EngineStatus& engine, int64_t lent_bytes, int64_t borrowed_bytes,
                                   const std::string& limit) {
  const v1::EngineInfo& info = engine.info();
  const v1::EngineLoad& load = engine.load();
  const int64_t block = info.kv().block_bytes();
  const int64_t prompts = load.prompt_tokens_computed() + load.prompt_tokens_local() + load.prompt_tokens_donor();
  return {info.name(),
          v1::EngineState_Name(info.state()),
          absl::StrCat(load.running_requests()),
          absl::StrCat(load.waiting_requests()),
          ShowBytes(info.kv().num_blocks() * block),
          ShowBytes(load.kv_blocks_used() * block),
          ShowBytes(load.kv_blocks_cached() * block),
          ShowBytes(lent_bytes),
          ShowReserve(info),
          info.borrows() || borrowed_bytes > 0 ? ShowBytes(borrowed_bytes) : "-",
          limit,
          Percent(load.prompt_tokens_local(), prompts),
          Percent(load.prompt_tokens_donor(), prompts),
          absl::StrCat(load.reclaims()),
          load.reclaims() == 0 ? "-" : absl::StrFormat("%.1f ms", 1e-3 * load.last_reclaim_micros())};
}

}  // namespace

bool ClusterTable::Lends(const v1::EngineInfo& engine) {
  return !engine.lease_channel().empty() && engine.never_lent_blocks() < engine.kv().num_blocks();
}

void ClusterTable::Apply(const v1::WatchResponse& news) {
  if (news.has_snapshot()) {
    engines_.clear();
    leases_.clear();
    limits_.clear();
    for (const v1::EngineStatus& engine : news.snapshot().engines()) engines_[engine.info().name()] = engine;
    for (const v1::Lease& lease : news.snapshot().leases()) leases_[lease.lease_id()] = lease;
    for (const v1::LeaseLimit& limit : news.snapshot().limits())
      limits_[limit.model_name()] = limit.max_borrowed_bytes();
  } else if (news.has_updated()) {
    engines_[news.updated().info().name()] = news.updated();
  } else if (news.has_lease()) {
    const v1::LeaseState state = news.lease().state();
    leases_[news.lease().lease_id()] = news.lease();
    if (state == v1::RELEASED || state == v1::FENCED) leases_.erase(news.lease().lease_id());
  } else if (news.has_limit()) {
    limits_[news.limit().model_name()] = news.limit().max_borrowed_bytes();
    if (!news.limit().has_max_borrowed_bytes()) limits_.erase(news.limit().model_name());
  } else if (!news.removed().empty()) {
    engines_.erase(news.removed());
  }
}

std::vector<const v1::Lease*> ClusterTable::LeasesInOrder() const {
  std::vector<const v1::Lease*> order;
  for (const auto& [id, lease] : leases_) order.push_back(&lease);
  std::sort(order.begin(), order.end(), [](const v1::Lease* a, const v1::Lease* b) {
    return std::make_tuple(a->donor(), a->extent().first_block(), a->lease_id()) <
           std::make_tuple(b->donor(), b->extent().first_block(), b->lease_id());
  });
  return order;
}

std::map<std::string, int64_t> ClusterTable::LentBytes() const {
  std::map<std::string, int64_t> bytes;
  for (const auto& [id, lease] : leases_) bytes[lease.donor()] += lease.num_bytes();
  return bytes;
}

std::map<std::string, int64_t> ClusterTable::BorrowedBytes() const {
  std::map<std::string, int64_t> bytes;
  for (const auto& [id, lease] : leases_) bytes[lease.borrower()] += lease.num_bytes();
  return bytes;
}

std::vector<ClusterTable::ModelLimit> ClusterTable::Limits() const {
  std::vector<ModelLimit> limits;
  for (const auto& [model, bytes] : limits_) {
    ModelLimit limit = {.model = model, .limit_bytes = bytes};
    for (const auto& [id, lease] : leases_) {
      if (lease.borrower_model() == model) limit.borrowed_bytes += lease.num_bytes();
    }
    for (const auto& [name, engine] : engines_) limit.engines += engine.info().model_name() == model ? 1 : 0;
    limits.push_back(std::move(limit));
  }
  return limits;
}

std::optional<int64_t> ClusterTable::LimitBytes(const std::string& model) const {
  const auto limit = limits_.find(model);
  return limit == limits_.end() ? std::nullopt : std::optional(limit->second);
}

std::string ClusterTable::ShowEngines() const {
  std::map<std::string, int64_t> lent = LentBytes(), borrowed = BorrowedBytes();
  Table table({{"ENGINE"},
               {"STATE"},
               {"RUNNING", Table::kRight},
               {"WAITING", Table::kRight},
               {"OWN", Table::kRight},
               {"USED", Table::kRight},
               {"CACHED", Table::kRight},
               {"LENT", Table::kRight},
               {"RESERVE", Table::kRight},
               {"BORROWED", Table::kRight},
               {"LIMIT", Table::kRight},
               {"HIT LOCAL", Table::kRight},
               {"HIT DONOR", Table::kRight},
               {"RECLAIMS", Table::kRight},
               {"LAST RECLAIM", Table::kRight}});
  for (const auto& [name, engine] : engines_) {
    const std::optional<int64_t> limit = LimitBytes(engine.info().model_name());
    table.Add(EngineRow(engine, lent[name], borrowed[name], limit ? ShowBytes(*limit) : "-"));
  }
  return table.ToString();
}

std::string ClusterTable::ShowLeases() const {
  Table table({{"LEASE", Table::kRight},
               {"STATE"},
               {"DONOR"},
               {"BORROWER"},
               {"BLOCKS"},
               {"BYTES", Table::kRight},
               {"BORROWER BLOCKS", Table::kRight},
               {"EPOCH", Table::kRight}});
  for (const v1::Lease* lease : LeasesInOrder()) {
    const int64_t first = lease->extent().first_block(), last = first + lease->extent().num_blocks() - 1;
    table.Add({absl::StrCat(lease->lease_id()), v1::LeaseState_Name(lease->state()), lease->donor(), lease->borrower(),
               absl::StrCat(first, "-", last), ShowBytes(lease->num_bytes()), absl::StrCat(lease->borrower_blocks()),
               lease->state() == v1::OFFERED ? "-" : absl::StrCat(lease->epoch())});
  }
  return table.ToString();
}

std::string ClusterTable::ShowLimits() const {
  if (limits_.empty()) return "";
  Table table({{"MODEL"}, {"LIMIT", Table::kRight}, {"BORROWED", Table::kRight}, {"ENGINES", Table::kRight}});
  for (const ModelLimit& limit : Limits()) {
    table.Add(
        {limit.model, ShowBytes(limit.limit_bytes), ShowBytes(limit.borrowed_bytes), absl::StrCat(limit.engines)});
  }
  return table.ToString();
}

std::string ClusterTable::Summary() const {
  int64_t bytes = 0;
  for (const auto& [id, lease] : leases_) bytes += lease.num_bytes();
  return absl::StrCat(engines_.size(), engines_.size() == 1 ? " engine, " : " engines, ", leases_.size(),
                      leases_.size() == 1 ? " lease of " : " leases of ", ShowBytes(bytes));
}

}  // namespace swiftcache::services::ctl
