// SPDX-License-Identifier: Apache-2.0
#include "engine/kv/kv_cache.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "glog/logging.h"

namespace swiftcache::engine::kv {
namespace {

Holder HolderFor(bool local_only) { return local_only ? Holder::kLocalSequence : Holder::kSequence; }

}  // namespace

KvCache::KvCache(const Options& options)
    : options_(options),
      pool_(options.num_blocks),
      tree_(options.block_tokens),
      planner_(&pool_, &tree_, options.leases_are_mapped),
      stream_capacity_(options.leases_are_mapped ? std::numeric_limits<int64_t>::max() : 0) {
  if (options.measures_reuse) meter_.emplace(options.num_blocks, options.block_tokens);
}

int64_t KvCache::MatchLimit(const TokenView& tokens) const {
  return std::max<int64_t>(0, tokens.size() - 1) / options_.block_tokens;
}

PrefixTree::Length KvCache::Measure(const std::string& salt, const TokenView& tokens, bool local_only) const {
  if (!options_.enable_prefix_caching) return {};
  return tree_.Measure(salt, tokens, MatchLimit(tokens), HolderFor(local_only));
}

int64_t KvCache::BlocksInUse(PrefixTree::InUse& seen, const std::string& salt, const TokenView& tokens) const {
  if (options_.enable_prefix_caching) tree_.Refresh(seen, salt, tokens, MatchLimit(tokens));
  return seen.blocks();
}

KvCache::Attached KvCache::Attach(BlockTable& table, const std::string& salt, const TokenView& tokens,
                                  bool local_only) {
  CHECK_EQ(table.size(), 0);
  table.filling_ = ++fillings_;
  table.holder_ = HolderFor(local_only);
  if (!options_.enable_prefix_caching) return {};
  PrefixTree::Match match = tree_.Find(salt, tokens, MatchLimit(tokens), table.holder_);
  table.blocks_ = std::move(match.blocks);
  table.pin_ = std::move(match.pin);
  table.committed_ = table.size();
  int64_t gone = 0;
  if (meter_) {
    table.looked_up_ = MatchLimit(tokens);
    const ReuseMeter::LookedUp seen = meter_->LookUp(salt, tokens, table.looked_up_, table.size());
    table.reuse_key_ = seen.key;
    CountWorth(table, seen);
    gone = seen.again_for_loans + seen.again_for_losses;
  }
  table.is_first_run_ = !std::exchange(table.was_attached_, true);
  if (table.is_first_run_) asked_again_.NoteAsked(gone);
  NoteFound(table, 0);
  return {table.size() * options_.block_tokens, LeasedBlocks(table) * options_.block_tokens};
}

// From this block on. What others use may be of the same request, one with n > 1, say.
void KvCache::NoteFound(BlockTable& table, int64_t first) {
  if (!table.is_first_run_) {
    for (int64_t i = first; i < table.size(); ++i) table.blocks_[i].NoteAwaited(false);
    return;
  }
  if (!options_.may_borrow || first == table.size()) return;
  for (int64_t i = first; i < table.size(); ++i) {
    if (pool_.sequence_holds(table[i]) == 1 && table.blocks_[i].NoteFound()) asked_again_.NoteAsked(1);
  }
  table.continues_ = PrefixTree::EndsAtLeaf(table.pin_) && pool_.sequence_holds(table.blocks_.back().id()) == 1;
}

// What others use would be there without leases too. What a sequence finds that ran before it has computed itself.
void KvCache::CountWorth(const BlockTable& table, const ReuseMeter::LookedUp& seen) {
  worth_.again_for_loans_tokens += seen.again_for_loans * options_.block_tokens;
  worth_.again_for_losses_tokens += seen.again_for_losses * options_.block_tokens;
  if (table.was_attached_ || !pool_.has_regions()) return;
  for (int64_t i = seen.found_alone; i < table.size(); ++i) {
    if (pool_.sequence_holds(table[i]) == 1) worth_.saved_tokens += options_.block_tokens;
  }
}

// What the table has beyond its committed blocks holds nothing yet, or a part of what the next block found has whole.
KvCache::Attached KvCache::AttachMore(BlockTable& table, const TokenView& tokens, int64_t computed_tokens) {
  const int64_t begun = computed_tokens - table.committed_ * options_.block_tokens;
  if (!table.pin_ || begun >= options_.block_tokens) return {};
  std::vector<BlockRef> more = tree_.FindMore(table.pin_, tokens, MatchLimit(tokens), table.holder_);
  if (more.empty()) return {};
  const Attached attached{static_cast<int64_t>(more.size()) * options_.block_tokens - begun,
                          LeasedAmong(more) * options_.block_tokens};
  table.blocks_.resize(table.committed_);
  std::move(more.begin(), more.end(), std::back_inserter(table.blocks_));
  for (int64_t i = table.committed_; i < table.size() && meter_; ++i) {
    table.reuse_key_ = ReuseMeter::Next(table.reuse_key_, tokens.Run(i * options_.block_tokens, options_.block_tokens));
  }
  NoteFound(table, std::exchange(table.committed_, table.size()));
  table.filling_ = ++fillings_;
  return attached;
}

int64_t KvCache::UnknownTokens(const BlockTable& table, const TokenView& tokens, int64_t computed_tokens,
                               int64_t most) const {
  const int64_t all = std::min(tokens.size() - computed_tokens, most);
  if (!table.pin_ || tree_.num_holes() == 0) return all;
  const int64_t max_blocks = std::min(MatchLimit(tokens), BlocksFor(computed_tokens + all));
  const std::optional<int64_t> known =
      tree_.NextKnown(table.pin_, tokens, computed_tokens / options_.block_tokens + 1, max_blocks, table.holder_);
  return known ? *known * options_.block_tokens - computed_tokens : all;
}

Growth KvCache::Grow(BlockTable& table, int64_t tokens, int64_t wish_tokens) {
  const int64_t count = BlocksFor(tokens) - table.size();
  if (count <= 0) return Growth::kDone;
  const Growth room = MakeFree(count, std::max(count, BlocksFor(wish_tokens) - table.size()));
  if (room != Growth::kDone) return room;
  std::optional<BlockId> last;
  if (table.size() > 0) last = table.blocks_.back().id();
  if (table.filling_ == 0) table.filling_ = ++fillings_;
  std::optional<std::vector<BlockRef>> blocks = pool_.Allocate(count, last, table.holder_);
  CHECK(blocks.has_value()) << "cached blocks could not be evicted";  // PrefixTree: idle blocks are always evictable
  std::move(blocks->begin(), blocks->end(), std::back_inserter(table.blocks_));
  return Growth::kDone;
}

int64_t KvCache::Obtain(int64_t blocks) {
  if (!has_tiers()) return std::min(blocks, num_available());
  MakeFree(blocks, blocks);
  return std::min(blocks, pool_.local().free);
}

Growth KvCache::MakeFree(int64_t count, int64_t wish) {
  if (count <= pool_.local().free) return Growth::kDone;
  if (pool_.num_lent() > 0) {
    EvictWorthless(count);
    const int64_t free = pool_.local().free;
    if (count <= free) return Growth::kDone;
    need_ += wish - free;
    return Growth::kWait;
  }
  return pool_.has_regions() ? MakeFreeAcrossTiers(count, wish) : EvictLocal(count);
}

// So that the owner's dead cache does not end what lives in a lease.
void KvCache::EvictWorthless(int64_t count) {
  if (!keep_cached_) return;
  const PlaceCounts local = pool_.local();
  const int64_t beyond = local.used + local.cached + count - *keep_cached_;
  tree_.Evict(std::clamp<int64_t>(beyond, 0, count - local.free));
  CountEvicted();
}

Growth KvCache::EvictLocal(int64_t count) {
  const PlaceCounts local = pool_.local();
  if (count > local.free + local.cached) return Growth::kNoRoom;
  tree_.Evict(count - local.free);
  CountEvicted();
  return Growth::kDone;
}

int64_t KvCache::SpillRoom() const {
  const PlaceCounts leased = pool_.leased();
  return std::clamp<int64_t>(stream_capacity_ - (leased.total - leased.free), 0, pool_.live().free);
}

// Evicts, wherever it lies, until so many local places are free, about to be, or can be had by spilling; returns how
// many those are. While leases have more room than there is to spill, evicting gains nothing.
int64_t KvCache::EvictForSpills(int64_t places) {
  for (;;) {
    const int64_t room = SpillRoom();
    const int64_t coming = pool_.local().free + pool_.num_outbound_moves() + std::min(room, pool_.num_spillable());
    if (coming >= places || room >= pool_.num_spillable() || !tree_.EvictOne()) return coming;
    CountEvicted();
  }
}

Growth KvCache::MakeFreeAcrossTiers(int64_t count, int64_t wish) {
  const int64_t coming = EvictForSpills(wish);
  const int64_t free = pool_.local().free;
  if (count <= free) return Growth::kDone;
  if (coming < count && pool_.num_moves() == 0) return Growth::kNoRoom;
  spill_wish_ += wish - free;
  return Growth::kWait;
}

void KvCache::CountEvicted(bool for_loan) {
  const int64_t blocks =
      NoteGone(for_loan || pool_.num_lent() > 0 ? ReuseMeter::Gone::kForLoan : ReuseMeter::Gone::kNo);
  evicted_total_ += blocks;
  recently_evicted_ += blocks;
}

int64_t KvCache::NoteGone(ReuseMeter::Gone why) {
  return tree_.TakeGone([&](BlockId id) {
    if (meter_) meter_->NoteGone(reuse_keys_[id.value()], why);
  });
}

void KvCache::Commit(BlockTable& table, const TokenView& tokens, int64_t computed_tokens) {
  if (!table.pin_) return;
  const int64_t full = computed_tokens / options_.block_tokens;
  for (int64_t& i = table.committed_; i < full; ++i) {
    const auto block_tokens = tokens.Run(i * options_.block_tokens, options_.block_tokens);
    if (!tree_.Extend(table.pin_, block_tokens, table.blocks_[i])) return;
    if (table.is_first_run_) asked_again_.NoteComputed();
    if (table.continues_ || asked_again_.Mostly()) table.blocks_[i].NoteExpected();
    if (!meter_) continue;
    table.reuse_key_ = ReuseMeter::Next(table.reuse_key_, block_tokens);
    reuse_keys_.resize(std::max<size_t>(reuse_keys_.size(), pool_.id_limit()));
    reuse_keys_[table[i].value()] = table.reuse_key_;
    if (i >= table.looked_up_) meter_->Use(table.reuse_key_);
  }
}

void KvCache::Release(BlockTable& table) {
  const bool was_attached = table.was_attached_, continues = table.continues_;
  table = BlockTable();
  table.was_attached_ = was_attached;
  table.continues_ = continues;
}

void KvCache::ReleaseForNow(BlockTable& table) {
  for (int64_t i = 0; i < table.committed_; ++i) table.blocks_[i].NoteAwaited(true);
  Release(table);
}

// A block of the tree has one number in all tables that hold it; what is not committed is looked for where it can be.
void KvCache::FollowPlaces(const BlockTable& table, PlaceCursor& cursor,
                           absl::FunctionRef<void(int64_t)> changed) const {
  const PlaceLog& log = pool_.moved();
  int64_t known = cursor.table == table.filling_ ? cursor.blocks : 0;
  if (log.end() - cursor.changes > std::min<uint64_t>(PlaceLog::kKept, known)) known = 0;
  int64_t rest = known;
  for (uint64_t i = cursor.changes; known > 0 && i < log.end(); ++i) {
    if (!tree_.Contains(log[i])) {
      rest = std::min(rest, table.committed_);
    } else if (const int64_t at = tree_.IndexOf(log[i]); at < known && table[at] == log[i]) {
      changed(at);
    }
  }
  for (int64_t i = rest; i < table.size(); ++i) changed(i);
  cursor = {table.filling_, table.size(), log.end()};
}

int64_t KvCache::HeldByNobodyElse(std::span<const BlockTable* const> tables) const {
  absl::flat_hash_map<BlockId, int32_t> holds;
  return std::accumulate(tables.begin(), tables.end(), int64_t{0}, [&](int64_t sum, const BlockTable* table) {
    return sum + std::count_if(table->blocks_.begin(), table->blocks_.end(), [&](const BlockRef& block) {
             const int32_t all = pool_.sequence_holds(block.id());
             return (all == 1 || ++holds[block.id()] == all) && !pool_.draining(pool_.place(block.id()).region);
           });
  });
}

int64_t KvCache::LeasedAmong(std::span<const BlockRef> blocks) const {
  if (!pool_.has_regions()) return 0;
  return std::count_if(blocks.begin(), blocks.end(),
                       [this](const BlockRef& block) { return !pool_.place(block.id()).local(); });
}

int64_t KvCache::num_potential() const {
  const int64_t more_reserved = std::max<int64_t>(0, potential_reserved_ - pool_.num_reserved());
  return num_usable_local() + std::max(num_usable_leased(), potential_region_blocks_ - more_reserved);
}

int64_t KvCache::num_available() const {
  const PlaceCounts local = pool_.local();
  if (!has_tiers()) return local.free + local.cached;
  const PlaceCounts leased = pool_.live();
  return local.free + local.cached + pool_.num_lent() + SpillRoom() + leased.cached;
}

int64_t KvCache::watermark() const {
  const int64_t usable = num_usable_local();
  const int64_t wanted = options_.watermark_blocks > 0 ? options_.watermark_blocks
                                                       : std::max(2 * BlocksFor(options_.max_chunk_tokens), usable / 8);
  return std::min(wanted, usable / 2);
}

absl::Status KvCache::CheckInvariants(std::span<const BlockTable* const> tables) const {
  RETURN_IF_ERROR(pool_.CheckInvariants());
  RETURN_IF_ERROR(tree_.CheckInvariants());
  std::vector<int32_t> holds(pool_.id_limit(), 0);
  for (const BlockTable* table : tables) {
    for (const BlockRef& block : table->blocks_) {
      ++holds[block.id().value()];
      if (table->holder_ == Holder::kLocalSequence && !pool_.place(block.id()).local()) {
        return absl::InternalError(
            absl::StrCat("block ", block.id().value(), " lies in a lease, its sequence runs from own memory"));
      }
    }
  }
  int64_t in_cache = 0;
  for (int64_t i = 0; i < pool_.id_limit(); ++i) {
    const BlockId id(static_cast<int32_t>(i));
    in_cache += pool_.cache_holds(id);
    if (holds[i] != pool_.sequence_holds(id)) {
      return absl::InternalError(absl::StrCat("block ", i, " is in ", holds[i], " block tables and held ",
                                              pool_.sequence_holds(id), " times"));
    }
  }
  if (in_cache == tree_.num_blocks()) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("the prefix tree has ", tree_.num_blocks(), " blocks and holds ", in_cache));
}

}  // namespace swiftcache::engine::kv
