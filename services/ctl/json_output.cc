// SPDX-License-Identifier: Apache-2.0
#include "services/ctl/json_output.h"

#include <CLI/CLI.hpp>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "absl/strings/str_cat.h"
#include "services/ctl/worth.h"

namespace swiftcache::services::ctl {
namespace {

using Json = nlohmann::ordered_json;

Json OrNull(std::optional<int64_t> value) { return value ? Json(*value) : Json(nullptr); }

Json EngineJson(const v1::EngineStatus& engine, int64_t lent_bytes, int64_t borrowed_bytes,
                std::optional<int64_t> limit_bytes) {
  const v1::EngineInfo& info = engine.info();
  const v1::EngineLoad& load = engine.load();
  const int64_t block = info.kv().block_bytes();
  return {{"engine", info.name()},
          {"model", info.model_name()},
          {"state", v1::EngineState_Name(info.state())},
          {"address", info.address().empty() ? Json(nullptr) : Json(info.address())},
          {"max_model_len_tokens", info.max_model_len_tokens()},
          {"running_requests", load.running_requests()},
          {"waiting_requests", load.waiting_requests()},
          {"kv_cache_dtype", info.kv().kv_cache_dtype()},
          {"block_tokens", info.kv().block_tokens()},
          {"block_bytes", block},
          {"own_bytes", info.kv().num_blocks() * block},
          {"used_bytes", load.kv_blocks_used() * block},
          {"cached_bytes", load.kv_blocks_cached() * block},
          {"lends", ClusterTable::Lends(info)},
          {"lend_reserve_bytes", info.never_lent_blocks() * block},
          {"lent_bytes", lent_bytes},
          {"borrows", info.borrows()},
          {"borrowed_bytes", borrowed_bytes},
          {"limit_bytes", OrNull(limit_bytes)},
          {"prompt_computed_tokens", load.prompt_tokens_computed()},
          {"prompt_local_tokens", load.prompt_tokens_local()},
          {"prompt_donor_tokens", load.prompt_tokens_donor()},
          {"reclaims", load.reclaims()},
          {"last_reclaim_seconds",
           load.reclaims() == 0 ? Json(nullptr) : Json(static_cast<double>(load.last_reclaim_micros()) / 1e6)}};
}

Json Engines(const ClusterTable& cluster) {
  std::map<std::string, int64_t> lent = cluster.LentBytes(), borrowed = cluster.BorrowedBytes();
  Json engines = Json::array();
  for (const auto& [name, engine] : cluster.engines()) {
    engines.push_back(EngineJson(engine, lent[name], borrowed[name], cluster.LimitBytes(engine.info().model_name())));
  }
  return engines;
}

Json Leases(const ClusterTable& cluster) {
  Json leases = Json::array();
  for (const v1::Lease* lease : cluster.LeasesInOrder()) {
    leases.push_back({{"lease_id", absl::StrCat(lease->lease_id())},
                      {"state", v1::LeaseState_Name(lease->state())},
                      {"donor", lease->donor()},
                      {"borrower", lease->borrower()},
                      {"donor_first_block", lease->extent().first_block()},
                      {"donor_blocks", lease->extent().num_blocks()},
                      {"borrower_blocks", lease->borrower_blocks()},
                      {"bytes", lease->num_bytes()},
                      {"epoch", lease->state() == v1::OFFERED ? Json(nullptr) : Json(absl::StrCat(lease->epoch()))}});
  }
  return leases;
}

Json Limits(const ClusterTable& cluster) {
  Json limits = Json::array();
  for (const ClusterTable::ModelLimit& limit : cluster.Limits()) {
    limits.push_back({{"model", limit.model},
                      {"limit_bytes", limit.limit_bytes},
                      {"borrowed_bytes", limit.borrowed_bytes},
                      {"engines", limit.engines}});
  }
  return limits;
}

Json Pairs(const Worth& worth) {
  Json pairs = Json::array();
  for (const Worth::Pair& pair : worth.pairs()) {
    Json ended = Json::object();
    for (const auto& [reason, count] : pair.ended) {
      ended[reason] = {{"released", count.released()}, {"fenced", count.fenced()}};
    }
    pairs.push_back({{"donor_model", pair.donor_model},
                     {"borrower_model", pair.borrower_model},
                     {"lent_bytes", pair.lent_bytes},
                     {"lent_byte_seconds", pair.lent_byte_seconds},
                     {"leases", pair.leases},
                     {"ended", std::move(ended)}});
  }
  return pairs;
}

Json Models(const Worth& worth) {
  Json models = Json::array();
  for (const Worth::Model& model : worth.models()) {
    models.push_back({{"model", model.model},
                      {"lent_byte_seconds", model.lent_byte_seconds},
                      {"borrowed_byte_seconds", model.borrowed_byte_seconds},
                      {"saved_tokens", model.saved_tokens},
                      {"again_for_loans_tokens", model.again_for_loans_tokens},
                      {"again_for_losses_tokens", model.again_for_losses_tokens},
                      {"net_tokens", model.net_tokens()}});
  }
  return models;
}

// Names are a broker's, which may be anybody's: bytes that are no UTF-8 are replaced.
std::string Line(const Json& object) { return object.dump(-1, ' ', false, Json::error_handler_t::replace); }

}  // namespace

std::shared_ptr<std::string> AddOutputFlag(CLI::App& command) {
  auto output = std::make_shared<std::string>(kTable);  // shared by the parser and the command
  command.add_option("-o,--output", *output, "table, or json: one object on one line")
      ->check(CLI::IsMember({kTable, kJson}))
      ->capture_default_str();
  return output;
}

std::string StatusJson(const std::string& broker, const ClusterTable& cluster) {
  return Line({{"broker", broker}, {"engines", Engines(cluster)}});
}

std::string LeasesJson(const std::string& broker, const ClusterTable& cluster) {
  const Worth worth(cluster);
  return Line({{"broker", broker},
               {"leases", Leases(cluster)},
               {"limits", Limits(cluster)},
               {"pairs", Pairs(worth)},
               {"models", Models(worth)}});
}

std::string TopJson(const std::string& broker, const ClusterTable& cluster) {
  return Line(
      {{"broker", broker}, {"engines", Engines(cluster)}, {"leases", Leases(cluster)}, {"limits", Limits(cluster)}});
}

}  // namespace swiftcache::services::ctl
