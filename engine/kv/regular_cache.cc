// SPDX-License-Identifier: Apache-2.0
#include "engine/kv/regular_cache.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "glog/logging.h"

namespace swiftcache::engine::kv {

RegularCache::RegularCache(const Options& options)
    : options_(options), allocator_(options.num_blocks), tree_(options.block_tokens) {}

int64_t RegularCache::MatchLimit(std::span<const int32_t> tokens) const {
  return std::max<int64_t>(0, static_cast<int64_t>(tokens.size()) - 1) / options_.block_tokens;
}

PrefixTree::Length RegularCache::Measure(const std::string& salt, std::span<const int32_t> tokens) const {
  if (!options_.enable_prefix_caching) return {};
  return tree_.Measure(salt, tokens, MatchLimit(tokens));
}

int64_t RegularCache::Attach(BlockTable& table, const std::string& salt, std::span<const int32_t> tokens) {
  CHECK_EQ(table.size(), 0);
  if (!options_.enable_prefix_caching) return 0;
  PrefixTree::Match match = tree_.Find(salt, tokens, MatchLimit(tokens));
  table.blocks_ = std::move(match.blocks);
  table.pin_ = std::move(match.pin);
  table.committed_ = table.size();
  return table.size() * options_.block_tokens;
}

bool RegularCache::Grow(BlockTable& table, int64_t tokens) {
  const int64_t count = BlocksFor(tokens) - table.size();
  if (count <= 0) return true;
  if (count > num_available()) return false;
  if (count > num_free()) evicted_total_ += tree_.Evict(count - num_free());
  std::optional<BlockId> last;
  if (table.size() > 0) last = table.blocks_.back().id();
  std::optional<std::vector<BlockRef>> blocks = allocator_.Allocate(count, last);
  CHECK(blocks.has_value()) << "cached blocks could not be evicted";  // PrefixTree: idle blocks are always evictable
  std::move(blocks->begin(), blocks->end(), std::back_inserter(table.blocks_));
  return true;
}

void RegularCache::Commit(BlockTable& table, std::span<const int32_t> tokens, int64_t computed_tokens) {
  if (!table.pin_) return;
  const int64_t full = computed_tokens / options_.block_tokens;
  for (int64_t& i = table.committed_; i < full; ++i) {
    tree_.Extend(table.pin_, tokens.subspan(i * options_.block_tokens, options_.block_tokens), table.blocks_[i]);
  }
}

void RegularCache::Release(BlockTable& table) { table = BlockTable(); }

absl::Status RegularCache::CheckInvariants(std::span<const BlockTable* const> tables) const {
  RETURN_IF_ERROR(allocator_.CheckInvariants());
  RETURN_IF_ERROR(tree_.CheckInvariants());
  std::vector<int32_t> holds(num_blocks(), 0);
  for (const BlockTable* table : tables) {
    for (const BlockRef& block : table->blocks_) ++holds[block.id().value()];
  }
  int64_t in_cache = 0;
  for (int64_t i = 0; i < num_blocks(); ++i) {
    const BlockId id(static_cast<int32_t>(i));
    in_cache += allocator_.cache_holds(id);
    if (holds[i] != allocator_.sequence_holds(id)) {
      return absl::InternalError(absl::StrCat("block ", i, " is in ", holds[i], " block tables and held ",
                                              allocator_.sequence_holds(id), " times"));
    }
  }
  if (in_cache == tree_.num_blocks()) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("the prefix tree has ", tree_.num_blocks(), " blocks and holds ", in_cache));
}

}  // namespace swiftcache::engine::kv
