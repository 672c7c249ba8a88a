// SPDX-License-Identifier: Apache-2.0
#include "broker/elastic/paper_policy.h"

#include <algorithm>
#include <span>

#include "broker/elastic/algorithm1.h"

namespace swiftcache::broker::elastic {

void PaperPolicy::Report(const Demand& demand, absl::Time /*now*/) {
  reported_ = true;
  window_max_request_tokens_ = demand.window_max_request_tokens;
}

int64_t PaperPolicy::LendableBlocks(int64_t lent_blocks, const UnitBlocks& unit, absl::Time /*now*/) {
  if (!reported_) return 0;
  const Resize resize = ScaleDown(worker_.num_blocks - lent_blocks, worker_.block_tokens, unit.worker, unit.master,
                                  std::span(&window_max_request_tokens_, 1));
  return lent_blocks + resize.worker_blocks;
}

int64_t PaperPolicy::TakeBackBlocks(int64_t need_blocks, int64_t lent_blocks, const UnitBlocks& unit,
                                    absl::Time /*now*/) {
  const int64_t own = worker_.num_blocks - lent_blocks;
  const int64_t request_tokens = (own + need_blocks) * worker_.block_tokens;
  const Resize resize = ScaleUp(own, worker_.block_tokens, unit.worker, unit.master, request_tokens);
  return std::min(lent_blocks, resize.worker_blocks);
}

}  // namespace swiftcache::broker::elastic
