// SPDX-License-Identifier: Apache-2.0
#include "engine/sample/sampling_state.h"

#include <algorithm>

namespace swiftcache::engine::sample {

std::vector<SeenToken> SeenIn(std::span<const int32_t> prompt, const SamplingParams& params) {
  if (!params.repeats()) return {};
  std::vector<int32_t> ids(prompt.begin(), prompt.end());
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  std::vector<SeenToken> seen;
  seen.reserve(ids.size());
  for (const int32_t id : ids) seen.push_back({.id = id});
  return seen;
}

void SamplingState::Observe(int32_t token) {
  if (!has_penalties()) return;
  auto at = std::lower_bound(seen_.begin(), seen_.end(), token,
                             [](const SeenToken& seen, int32_t id) { return seen.id < id; });
  if (at == seen_.end() || at->id != token) at = seen_.insert(at, {.id = token});
  ++at->occurrences;
}

}  // namespace swiftcache::engine::sample
