// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/worth/oracle.h"

#include <algorithm>
#include <vector>

#include "engine/kv/lru_depth.h"

namespace swiftcache::sim::worth {
namespace {

uint64_t KeyOf(const Load& load, const Request& request, int64_t block, int64_t block_tokens) {
  const bool system = (block + 1) * block_tokens <= load.system_tokens;
  return static_cast<uint64_t>(system ? 0 : request.conversation) << 20 | static_cast<uint64_t>(block);
}

}  // namespace

// Twice through all requests: first to see which uses of a block are followed by one that finds it, then to see how deep
// those lie at each moment.
OraclePolicy::OraclePolicy(const broker::elastic::Worker& worker, const Load& load) : worker_(worker) {
  const int64_t bt = worker.block_tokens;
  std::map<std::pair<uint64_t, int64_t>, bool> found_again;  // by block and number of the request that used it
  for (const bool second : {false, true}) {
    engine::kv::LruDepth list(worker.num_blocks);
    std::map<uint64_t, int64_t> last_use;                  // by block: the number of a request
    std::map<std::pair<int64_t, int64_t>, uint64_t> kept;  // by request and place in it: blocks that are found again
    std::map<uint64_t, std::pair<int64_t, int64_t>> kept_at;
    for (int64_t i = 0; i < static_cast<int64_t>(load.requests.size()); ++i) {
      const Request& request = load.requests[i];
      bool hit = true;
      for (int64_t b = 0; b < (request.prompt_tokens - 1) / bt && !second; ++b) {
        const uint64_t key = KeyOf(load, request, b, bt);
        hit = hit && list.Of(key).has_value();
        if (hit) found_again[{key, last_use[key]}] = true;
      }
      for (int64_t b = (request.prompt_tokens + request.answer_tokens - 1) / bt - 1; b >= 0; --b) {
        const uint64_t key = KeyOf(load, request, b, bt);
        list.Use(key);
        last_use[key] = i;
        if (!second) continue;
        if (const auto at = kept_at.find(key); at != kept_at.end()) kept.erase(at->second);
        kept_at.erase(key);
        if (!found_again.contains({key, i})) continue;
        kept_at[key] = {i, -b};
        kept[{i, -b}] = key;
      }
      if (!second) continue;
      kept_[request.at] = kept.empty() ? 0 : list.Of(kept.begin()->second).value_or(worker.num_blocks);
    }
  }
}

void OraclePolicy::Report(const broker::elastic::Demand& demand, absl::Time /*now*/) {
  needed_now_ = demand.used_blocks + demand.waiting_blocks;
}

int64_t OraclePolicy::LendableBlocks(int64_t /*lent*/, const broker::elastic::UnitBlocks& /*unit*/, absl::Time now) {
  const auto next = kept_.upper_bound(absl::ToDoubleSeconds(now - absl::UnixEpoch()));
  const int64_t kept = next == kept_.begin() ? 0 : std::prev(next)->second;
  return std::max<int64_t>(0, worker_.num_blocks - std::max(needed_now_, kept));
}

}  // namespace swiftcache::sim::worth
