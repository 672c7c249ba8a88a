// SPDX-License-Identifier: Apache-2.0
// The KV cache with leases and lending, all at once against the bytes.
#include <gtest/gtest.h>

#include <algorithm>
#include <list>
#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "engine/kv/kv_cache.h"
#include "engine/kv/leased_count.h"

namespace swiftcache::engine::kv {
namespace {

using Tokens = std::vector<int32_t>;
constexpr int64_t kBlockTokens = 2;

// Everything at once. The bytes of each place are modelled; a sequence must always see, in each of its blocks, what was
// written for exactly its tokens, and a copy's source must not change under the copy.
class TieredWorld {
 public:
  explicit TieredWorld(unsigned seed)
      : rng_(seed),
        cache_({.num_blocks = 6 + static_cast<int64_t>(rng_() % 20),
                .block_tokens = kBlockTokens,
                .may_borrow = true,
                .watermark_blocks = static_cast<int64_t>(rng_() % 4)}) {}

  void Round() {
    switch (rng_() % 16) {
      case 0:
        if (running_.size() < 6) Start();
        break;
      case 1:
        if (!running_.empty()) running_.erase(Any());
        break;
      case 2:
        if (leases_.size() < 3) leases_[cache_.AddRegion(1 + rng_() % 12)] = false;
        break;
      case 3:
        if (!leases_.empty() && rng_() % 3 == 0) Drain(AnyLease());
        break;
      case 4:
        if (!leases_.empty() && rng_() % 3 == 0) Lose(AnyLease());
        break;
      case 5:
        LendSome();
        break;
      case 6:
        TakeBackSome();
        break;
      case 7:
      case 8:
      case 9:
        EndSomeMove();
        break;
      case 10:
        Begin(cache_.TakeMoves(1 + rng_() % 4, 1 + rng_() % 4));
        break;
      case 11:
        Reserve();
        break;
      default:
        if (!running_.empty()) Compute(*Any());
    }
    Check();
  }
  void Finish() {
    running_.clear();
    while (!moves_.empty()) EndSomeMove();
    while (!leases_.empty()) Lose(leases_.begin()->first);
    while (!lent_.empty()) TakeBackSome();
    cache_.ReleaseReserved(static_cast<int64_t>(cache_.reserved().size()));
    Check();
    const PlaceCounts local = cache_.local();
    EXPECT_EQ(local.free + local.cached, local.total) << "a block was leaked";
    EXPECT_EQ(local.used, 0);
  }

  struct Totals {
    int64_t hits = 0, leased_hits = 0, spilled = 0, aborted = 0, lost = 0, saved = 0, waits = 0, refusals = 0, lent = 0,
            cleared = 0, reclaimed = 0, dirty = 0, more_hits = 0, promoted = 0, kept = 0, zeroed = 0, untouched = 0,
            kept_places = 0, patched_places = 0, fillings_again = 0;
  };
  const Totals& totals() const { return totals_; }
  int64_t evicted() const { return cache_.evicted_total(); }

 private:
  using Content = std::pair<std::string, Tokens>;  // salt, and all tokens up to the block's end
  struct Sequence {
    std::string salt;
    Tokens tokens;
    int64_t computed = 0;
    bool local_only = false;
    BlockTable table;
    PlaceCursor cursor;
    std::vector<Place> followed;
    LeasedCount leased;
  };
  struct Copy {
    Move move;
    Content content;
  };
  using Running = std::list<Sequence>;

  Running::iterator Any() { return std::next(running_.begin(), rng_() % running_.size()); }
  RegionId AnyLease() { return std::next(leases_.begin(), rng_() % leases_.size())->first; }

  void Start() {
    Sequence& s = running_.emplace_back();
    s.salt = std::string(rng_() % 2, 's');
    for (int n = rng_() % 16 + 1; n > 0; --n) s.tokens.push_back(rng_() % 2);
    s.local_only = rng_() % 5 == 0;
    const auto measured = cache_.Measure(s.salt, s.tokens, s.local_only);
    const KvCache::Attached found = cache_.Attach(s.table, s.salt, s.tokens, s.local_only);
    EXPECT_EQ(found.tokens, measured.blocks * kBlockTokens);
    EXPECT_EQ(found.leased_tokens, measured.leased_blocks * kBlockTokens);
    s.computed = found.tokens;
    totals_.hits += found.tokens > 0;
    totals_.leased_hits += found.leased_tokens > 0;
  }

  void Compute(Sequence& s) {
    if (s.computed == static_cast<int64_t>(s.tokens.size())) s.tokens.push_back(rng_() % 2);
    if (rng_() % 4 != 0) AttachMore(s);
    const int64_t unknown = cache_.UnknownTokens(s.table, s.tokens, s.computed, 1000);
    EXPECT_TRUE(unknown > 0 && s.computed + unknown <= static_cast<int64_t>(s.tokens.size()));
    const int64_t goal = s.computed + 1 + rng_() % unknown;
    const int64_t obtainable = cache_.Obtain(cache_.BlocksFor(goal) - s.table.size());
    const Growth growth = cache_.Grow(s.table, goal, static_cast<int64_t>(s.tokens.size()));
    EXPECT_EQ(growth == Growth::kDone, s.table.size() >= cache_.BlocksFor(goal));
    if (growth != Growth::kDone) {
      EXPECT_LT(obtainable, cache_.BlocksFor(goal) - s.table.size());
      (growth == Growth::kWait ? totals_.waits : totals_.refusals) += 1;
      if (growth == Growth::kWait) ExpectSomethingOnItsWay();
      return;
    }
    for (int32_t place : cache_.TakeDirty()) {
      EXPECT_EQ(memory_[(Place{kLocalRegion, place})].first, "foreign");
      memory_.erase({kLocalRegion, place});
      ++totals_.dirty;
    }
    for (int64_t p = s.computed; p < goal; ++p) {
      const Place place = cache_.place(s.table[p / kBlockTokens]);
      EXPECT_TRUE(place.local()) << "new KV is written to the own arena";
      EXPECT_NE(memory_[place].first, "foreign") << "not scrubbed";
      memory_[place] = {s.salt, Tokens(s.tokens.begin(), s.tokens.begin() + p + 1)};
    }
    s.computed = goal;
    cache_.Commit(s.table, s.tokens, s.computed);
  }

  // What lay behind a hole is what was written for these tokens: Check sees to that.
  void AttachMore(Sequence& s) {
    const KvCache::Attached more = cache_.AttachMore(s.table, s.tokens, s.computed);
    s.computed += more.tokens;
    totals_.more_hits += more.tokens > 0;
    EXPECT_LT(s.computed, static_cast<int64_t>(s.tokens.size()));
    EXPECT_TRUE(more.tokens == 0 || s.table.size() == cache_.BlocksFor(s.computed));
    EXPECT_TRUE(!s.local_only || more.leased_tokens == 0);
  }

  void ExpectSomethingOnItsWay() {
    const int64_t wish = cache_.TakeNeed();
    const std::vector<Move> moves = cache_.TakeMoves(100, 100);
    Begin(moves);
    totals_.reclaimed += wish;
    EXPECT_TRUE(wish > 0 || !moves_.empty()) << "it waits for nothing";
  }

  void Begin(const std::vector<Move>& moves) {
    for (const Move& move : moves) {
      EXPECT_EQ(cache_.place(move.id), move.from);
      moves_.push_back({move, memory_[move.from]});
      totals_.promoted += move.to.local();
    }
  }

  // What came home in part is another's by now.
  void Abort(const Move& move) {
    if (move.to.local()) memory_[move.to] = {"foreign", {}};
    cache_.AbortMove(move);
  }

  void EndSomeMove() {
    if (moves_.empty()) return;
    const auto copy = std::next(moves_.begin(), rng_() % moves_.size());
    EXPECT_EQ(memory_[copy->move.from], copy->content) << "the source changed under the copy";
    if (rng_() % 4 == 0) {
      Abort(copy->move);
      ++totals_.aborted;
    } else {
      const bool arrived = cache_.FinishMove(copy->move);
      if (arrived) memory_[copy->move.to] = copy->content;
      totals_.spilled += arrived && !copy->move.to.local();
      totals_.kept += !arrived;
    }
    moves_.erase(copy);
  }

  void Drain(RegionId lease) {
    if (!leases_[lease]) cache_.RegionDraining(lease);
    leases_[lease] = true;
    const std::vector<Move> moves = cache_.PlanDrain(lease, 1 + rng_() % 6);
    totals_.saved += static_cast<int64_t>(moves.size());
    Begin(moves);
  }

  void Lose(RegionId lease) {
    cache_.RegionDraining(lease);
    for (auto copy = moves_.begin(); copy != moves_.end();) {
      if (copy->move.from.region != lease && copy->move.to.region != lease) {
        ++copy;
        continue;
      }
      Abort(copy->move);
      copy = moves_.erase(copy);
    }
    for (Sequence& s : running_) {
      if (!cache_.ReadersOf(lease).Has(s.table)) continue;
      EXPECT_FALSE(s.local_only);
      cache_.Release(s.table);
      s.computed = 0;
      s.local_only = rng_() % 2;
      s.computed = cache_.Attach(s.table, s.salt, s.tokens, s.local_only).tokens;
      EXPECT_FALSE(cache_.ReadersOf(lease).Has(s.table));
    }
    totals_.lost += cache_.DropRegion(lease);
    leases_.erase(lease);
    std::erase_if(memory_, [&](const auto& at) { return at.first.region == lease; });
  }

  void LendSome() {
    const auto total = static_cast<int32_t>(cache_.local().total);
    const int32_t count = 1 + static_cast<int32_t>(rng_() % (total / 2));
    const int32_t first = total - count - static_cast<int32_t>(rng_() % 2);
    const int64_t evicted = cache_.evicted_total();
    const auto most = static_cast<int64_t>(rng_() % 4);
    cache_.KeepCached(rng_() % 3 == 0 ? 0 : rng_() % total);
    const auto moves = cache_.ClearForLending({first, count}, most);
    if (!moves) {
      EXPECT_EQ(cache_.evicted_total(), evicted) << "refused, and dropped blocks";
      return;
    }
    for (const Move& move : *moves) {
      EXPECT_TRUE(move.to.local() && move.to.index < first);
      memory_[move.to] = memory_[move.from];
      EXPECT_TRUE(cache_.FinishMove(move));
      ++totals_.cleared;
    }
    if (!cache_.Lend({first, count})) {
      EXPECT_EQ(static_cast<int64_t>(moves->size()), most) << "more could have moved";
      return;
    }
    Zero(first, count);
    for (int32_t i = first; i < first + count; ++i) memory_[{kLocalRegion, i}] = {"foreign", {}};
    lent_.insert(first);
    lent_counts_[first] = count;
    ++totals_.lent;
  }

  // As a lender does before it grants: all but what was never written.
  void Zero(int32_t first, int32_t count) {
    for (const PlaceRun& run : cache_.WrittenIn({first, count})) {
      EXPECT_TRUE(run.first >= first && run.count > 0 && run.first + run.count <= first + count);
      for (int32_t i = run.first; i < run.first + run.count; ++i) memory_.erase({kLocalRegion, i});
      cache_.NoteZeroed(run);
      totals_.zeroed += run.count;
      totals_.untouched -= run.count;
    }
    totals_.untouched += count;
    EXPECT_TRUE(cache_.WrittenIn({first, count}).empty());
    for (int32_t i = first; i < first + count; ++i) {
      EXPECT_FALSE(memory_.contains({kLocalRegion, i})) << "place " << i << " is lent with another's bytes";
    }
  }

  void TakeBackSome() {
    if (lent_.empty()) return;
    const int32_t first = *std::next(lent_.begin(), rng_() % lent_.size());
    if (rng_() % 2 && withheld_.insert(first).second) return cache_.Withhold({first, lent_counts_[first]});
    cache_.TakeBack({first, lent_counts_[first]});
    withheld_.erase(first);
    lent_.erase(first);
  }

  void Reserve() {
    const auto reserved = static_cast<int64_t>(cache_.reserved().size());
    if (reserved > 0 && rng_() % 2) {
      const auto released = static_cast<int64_t>(1 + rng_() % reserved);
      for (const int32_t place : cache_.reserved().last(released)) memory_[{kLocalRegion, place}] = {"foreign", {}};
      cache_.ReleaseReserved(released);
    } else if (reserved < 3) {
      cache_.ReserveLocal(1);
    }
  }

  void Check() {
    std::vector<const BlockTable*> tables;
    for (Sequence& s : running_) {
      tables.push_back(&s.table);
      if (rng_() % 4 == 0) Follow(s);
      for (int64_t b = 0; b * kBlockTokens < s.computed; ++b) {
        const int64_t end = std::min(s.computed, (b + 1) * kBlockTokens);
        const Place place = cache_.place(s.table[b]);
        ASSERT_EQ(memory_[place], Content(s.salt, Tokens(s.tokens.begin(), s.tokens.begin() + end)));
        if (!place.local()) CheckFilling(cache_.filling(s.table[b]), memory_[place]);
      }
    }
    ASSERT_TRUE(cache_.CheckInvariants(tables).ok()) << cache_.CheckInvariants(tables);
  }

  // What lies in leases are always the same bytes of a filling, whatever became of it meanwhile.
  void CheckFilling(Filling filling, const Content& content) {
    const auto [known, is_new] = fillings_.try_emplace(filling, content);
    ASSERT_EQ(known->second, content);
    totals_.fillings_again += !is_new;
  }

  // What is kept of a table's places is what they are, however long ago it was last looked at.
  void Follow(Sequence& s) {
    const int64_t known = std::min<int64_t>(s.table.size(), s.followed.size());
    s.followed.resize(s.table.size());
    int64_t looked_at = 0, patched = 0;
    cache_.FollowPlaces(s.table, s.cursor, [&](int64_t i) {
      const Place now = cache_.place(s.table[i]);
      patched += i < known && now != s.followed[i];
      s.followed[i] = now;
      ++looked_at;
    });
    for (int64_t i = 0; i < s.table.size(); ++i) ASSERT_EQ(s.followed[i], cache_.place(s.table[i])) << "block " << i;
    EXPECT_EQ(s.leased.Follow(cache_, s.table), cache_.LeasedBlocks(s.table));
    totals_.kept_places += s.table.size() - looked_at;
    totals_.patched_places += patched;
    int64_t again = 0;
    cache_.FollowPlaces(s.table, s.cursor, [&](int64_t) { ++again; });
    EXPECT_EQ(again, 0) << "nothing has changed since";
  }

  std::mt19937 rng_;
  KvCache cache_;
  std::map<Place, Content> memory_;
  std::map<Filling, Content> fillings_;
  Running running_;
  std::map<RegionId, bool> leases_;    // true: drains
  std::set<int32_t> lent_, withheld_;  // first places
  std::map<int32_t, int32_t> lent_counts_;
  std::list<Copy> moves_;
  Totals totals_;
};

TEST(KvCacheTiersRandomTest, NoOrderOfEventsMixesContentsOrLeaksABlock) {
  TieredWorld::Totals sum;
  int64_t evicted = 0;
  for (unsigned seed = 0; seed < 1000; ++seed) {
    SCOPED_TRACE(seed);
    TieredWorld world(seed);
    for (int round = 0; round < 600 && !::testing::Test::HasFailure(); ++round) world.Round();
    if (::testing::Test::HasFailure()) return;
    world.Finish();
    const TieredWorld::Totals& t = world.totals();
    sum.hits += t.hits, sum.leased_hits += t.leased_hits, sum.spilled += t.spilled, sum.aborted += t.aborted;
    sum.lost += t.lost, sum.saved += t.saved, sum.waits += t.waits, sum.refusals += t.refusals, sum.lent += t.lent;
    sum.cleared += t.cleared, sum.reclaimed += t.reclaimed, sum.dirty += t.dirty, sum.promoted += t.promoted;
    sum.kept += t.kept, sum.zeroed += t.zeroed, sum.untouched += t.untouched, evicted += world.evicted();
    sum.more_hits += t.more_hits, sum.fillings_again += t.fillings_again;
    sum.kept_places += t.kept_places, sum.patched_places += t.patched_places;
  }
  for (int64_t times :
       {sum.hits,           sum.leased_hits,    sum.spilled, sum.aborted,   sum.lost,      sum.saved,
        sum.waits,          sum.refusals,       sum.lent,    sum.cleared,   sum.reclaimed, sum.dirty,
        sum.promoted,       sum.kept,           sum.zeroed,  sum.untouched, sum.more_hits, sum.kept_places,
        sum.patched_places, sum.fillings_again, evicted}) {
    EXPECT_GT(times, 50) << "a part of the world was hardly visited";
  }
}

}  // namespace
}  // namespace swiftcache::engine::kv
