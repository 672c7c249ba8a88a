// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/worth/cluster.h"

#include <algorithm>
#include <optional>

#include "broker/ledger/carve.h"
#include "common/base/units.h"
#include "tests/sim/worth/oracle.h"

namespace swiftcache::sim::worth {

using broker::elastic::UnitBlocks;

namespace {

constexpr UnitBlocks kUnit{.worker = Cluster::kUnitBlocks, .master = Cluster::kUnitBlocks};

std::unique_ptr<broker::elastic::Policy> MakePolicy(const Cluster::Options& options, const Engine::Options& engine,
                                                    const Load& load) {
  const broker::elastic::Worker worker{.num_blocks = engine.num_blocks, .block_tokens = Engine::kBlockTokens};
  if (options.side == Side::kOracle) return std::make_unique<OraclePolicy>(worker, load);
  const auto kind =
      options.side == Side::kPaper ? broker::elastic::PolicyKind::kPaper : broker::elastic::PolicyKind::kDefault;
  return broker::elastic::CreatePolicy({.kind = kind, .window = options.window}, worker);
}

}  // namespace

Cluster::Cluster(const Options& options, const std::vector<Engine::Options>& engines, const std::vector<Load>& loads)
    : options_(options), asks_(engines.size()), declined_until_(engines.size()), lent_(engines.size()) {
  for (size_t i = 0; i < engines.size(); ++i) {
    engines_.push_back(std::make_unique<Engine>(engines[i], loads[i], static_cast<Neighbours&>(*this)));
    policies_.push_back(MakePolicy(options, engines[i], loads[i]));
  }
}

void Cluster::Run(double seconds) {
  for (; now_ < seconds; now_ += options_.tick) {
    for (const auto& engine : engines_) engine->RunUntil(now_);
  }
  for (const Lease& lease : on_loan_) lent_[lease.donor] += (now_ - lease.since) * lease.extent.num_blocks;
}

size_t Cluster::IndexOf(const Engine& engine) const {
  return std::find_if(engines_.begin(), engines_.end(), [&](const auto& e) { return e.get() == &engine; }) -
         engines_.begin();
}

int64_t Cluster::LentBy(size_t donor) const {
  int64_t blocks = 0;
  for (const Lease& lease : on_loan_) blocks += lease.donor == donor ? lease.extent.num_blocks : 0;
  return blocks;
}

int64_t Cluster::FreeOf(size_t donor) {
  const int64_t lent = LentBy(donor);
  return std::max<int64_t>(0, policies_[donor]->LendableBlocks(lent, kUnit, Now()) - lent) / kUnitBlocks * kUnitBlocks;
}

void Cluster::Report(Engine& engine, const engine::coordinator::Window& window) {
  policies_[IndexOf(engine)]->Report({.used_blocks = window.used_blocks,
                                      .waiting_blocks = window.waiting_blocks,
                                      .window_max_request_tokens = window.max_request_tokens,
                                      .window_peak_blocks = window.peak_blocks,
                                      .cache_blocks = window.cache_blocks},
                                     Now());
}

void Cluster::Wish(Engine& engine, int64_t blocks) {
  const size_t borrower = IndexOf(engine);
  Asks& asks = asks_[borrower];
  if (options_.side == Side::kAlone || now_ < asks.next) return;
  int64_t got = 0;
  while (got < blocks) {
    std::optional<size_t> best;
    for (size_t i = 0; i < engines_.size(); ++i) {
      const bool may = i != borrower && now_ >= declined_until_[i] && FreeOf(i) > 0;
      if (may && (!best || FreeOf(i) > FreeOf(*best))) best = i;
    }
    if (!best) break;
    if (Lend(*best, borrower, blocks - got)) {
      got += on_loan_.back().extent.num_blocks;
    } else {
      declined_until_[*best] = now_ + 2;
    }
  }
  asks.interval = got < blocks ? std::min(2 * asks.interval, 5.0) : 0.2;
  asks.next = now_ + asks.interval;
  int64_t lendable = 0;
  for (size_t i = 0; i < engines_.size(); ++i) lendable += i == borrower ? 0 : FreeOf(i);
  engine.SetLendable(lendable);
}

bool Cluster::Lend(size_t donor, size_t borrower, int64_t most_blocks) {
  const int64_t lendable = LentBy(donor) + FreeOf(donor), total = engines_[donor]->options().num_blocks;
  std::vector<broker::ledger::Extent> taken;
  for (const Lease& lease : on_loan_) {
    if (lease.donor == donor) taken.push_back(lease.extent);
  }
  const int64_t units =
      std::min({CeilDiv(most_blocks, kUnitBlocks), FreeOf(donor) / kUnitBlocks, kMaxLeaseBlocks / kUnitBlocks});
  const std::optional<broker::ledger::Extent> extent =
      broker::ledger::CarveFromTail({.first_block = total - lendable, .num_blocks = lendable}, taken,
                                    {.unit_blocks = kUnitBlocks, .max_units = units});
  if (options_.side == Side::kOracle) engines_[donor]->cache().KeepCached(total - lendable);
  if (!extent || !engines_[donor]->Clear({extent->first_block, extent->num_blocks})) return false;
  on_loan_.push_back({.donor = donor,
                      .borrower = borrower,
                      .extent = *extent,
                      .region = engines_[borrower]->Use(extent->num_blocks, engines_[donor]->options().name),
                      .since = now_});
  return true;
}

void Cluster::TakeBack(Engine& engine, int64_t blocks) {
  const size_t donor = IndexOf(engine);
  int64_t target = policies_[donor]->TakeBackBlocks(blocks, LentBy(donor), kUnit, Now());
  std::sort(on_loan_.begin(), on_loan_.end(),
            [](const Lease& a, const Lease& b) { return a.extent.first_block < b.extent.first_block; });
  std::erase_if(on_loan_, [&](const Lease& lease) {
    if (lease.donor != donor || target <= 0) return false;
    target -= lease.extent.num_blocks;
    revoked_blocks_ += lease.extent.num_blocks;
    End(lease);
    return true;
  });
}

void Cluster::End(const Lease& lease) {
  engines_[lease.borrower]->GiveUp(lease.region);
  engines_[lease.donor]->TakeBack({lease.extent.first_block, lease.extent.num_blocks});
  lent_[lease.donor] += (now_ - lease.since) * static_cast<double>(lease.extent.num_blocks);
}

}  // namespace swiftcache::sim::worth
