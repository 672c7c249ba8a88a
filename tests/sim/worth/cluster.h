// SPDX-License-Identifier: Apache-2.0
// Several engines in virtual time that lend to each other as a policy says, and what came of it.
//
//   Cluster cluster({.side = Side::kDefault}, engines, loads);
//   cluster.Run(/*seconds=*/1800);
//   cluster.outcome(0).again;
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "broker/elastic/policy.h"
#include "broker/ledger/lease.h"
#include "tests/sim/worth/engine.h"

namespace swiftcache::sim::worth {

enum class Side { kAlone, kPaper, kDefault, kOracle };

/// A broker without fairness: who asks first gets what donors may lend. Blocks of all engines have one size.
/// Thread-safety: none. Ownership: owns engines and policies, borrows loads.
class Cluster final : private Neighbours {
 public:
  static constexpr int64_t kUnitBlocks = 8, kMaxLeaseBlocks = 32;
  struct Options {
    Side side = Side::kDefault;
    absl::Duration window = absl::Seconds(60);
    double tick = 0.05;  // seconds: an idle engine looks so often
  };
  Cluster(const Options& options, const std::vector<Engine::Options>& engines, const std::vector<Load>& loads);

  void Run(double seconds);

  const Outcome& outcome(size_t engine) const { return engines_[engine]->outcome(); }
  const engine::kv::SharingWorth& worth(size_t engine) const { return engines_[engine]->cache().worth(); }
  int64_t revoked_blocks() const { return revoked_blocks_; }  // that their donors needed
  double lent_block_seconds(size_t engine) const { return lent_[engine]; }

 private:
  struct Lease {
    size_t donor = 0, borrower = 0;
    broker::ledger::Extent extent;
    engine::kv::RegionId region;
    double since = 0;
  };
  struct Asks {  // as engine/coordinator: not too often, and less often in vain
    double next = 0, interval = 0.2;
  };

  void TakeBack(Engine& donor, int64_t blocks) override;
  void Wish(Engine& borrower, int64_t blocks) override;
  void Report(Engine& engine, const engine::coordinator::Window& window) override;

  size_t IndexOf(const Engine& engine) const;
  int64_t LentBy(size_t donor) const;
  int64_t FreeOf(size_t donor);
  bool Lend(size_t donor, size_t borrower, int64_t most_blocks);
  void End(const Lease& lease);
  absl::Time Now() const { return absl::UnixEpoch() + absl::Seconds(now_); }

  const Options options_;
  double now_ = 0;
  std::vector<std::unique_ptr<Engine>> engines_;
  std::vector<std::unique_ptr<broker::elastic::Policy>> policies_;
  std::vector<Lease> on_loan_;
  std::vector<Asks> asks_;
  std::vector<double> declined_until_, lent_;
  int64_t revoked_blocks_ = 0;
};

}  // namespace swiftcache::sim::worth
