// SPDX-License-Identifier: Apache-2.0
#include "engine/kv/tiers.h"

#include <algorithm>

namespace swiftcache::engine::kv {

bool Tiers::Readers::Has(const BlockTable& table) const {
  return std::any_of(first_.begin(), first_.end(), [&](const auto& block) {
    return block.first < table.size() && table[block.first] == block.second;
  });
}

}  // namespace swiftcache::engine::kv
