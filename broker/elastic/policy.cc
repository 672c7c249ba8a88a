// SPDX-License-Identifier: Apache-2.0
#include "broker/elastic/policy.h"

#include "broker/elastic/default_policy.h"
#include "broker/elastic/paper_policy.h"

namespace swiftcache::broker::elastic {

std::unique_ptr<Policy> CreatePolicy(const PolicyOptions& options, const Worker& worker) {
  if (options.kind == PolicyKind::kPaper) return std::make_unique<PaperPolicy>(worker);
  return std::make_unique<DefaultPolicy>(options, worker);
}

}  // namespace swiftcache::broker::elastic
