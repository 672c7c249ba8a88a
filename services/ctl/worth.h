// SPDX-License-Identifier: Apache-2.0
// Whether sharing pays, and for whom: what the engines of a cluster say of it, by pair of models and by model.
//
//   const Worth worth(cluster);
//   std::cout << worth.ShowPairs() << "\n" << worth.ShowModels();
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "services/ctl/cluster_table.h"

namespace swiftcache::services::ctl {

/// Sums since the start of each engine that is there; one that goes takes its own along. What models lent and what they
/// borrowed are the same numbers, the donors', so their sums are equal. Thread-safety: none. Ownership: a value. Errors:
/// none; numbers that are too large stop at the largest.
class Worth {
 public:
  /// What engines of one model lent to those of another, or of the same.
  struct Pair {
    std::string donor_model, borrower_model;
    int64_t lent_bytes = 0, lent_byte_seconds = 0, leases = 0;
    std::map<std::string, v1::LeaseAccount::Ended> ended;  // by reason
  };
  /// Tokens as engine/kv/sharing_worth.h says.
  struct Model {
    std::string model;
    int64_t lent_byte_seconds = 0, borrowed_byte_seconds = 0;
    int64_t saved_tokens = 0, again_for_loans_tokens = 0, again_for_losses_tokens = 0;
    int64_t net_tokens() const;
  };
  explicit Worth(const ClusterTable& cluster);

  /// By donor, then borrower.
  const std::vector<Pair>& pairs() const { return pairs_; }
  /// Those that lent or borrowed, or whose engines do share.
  const std::vector<Model>& models() const { return models_; }

  /// A pair a line; "" where nothing was ever lent.
  std::string ShowPairs() const;
  /// A model a line, and the sum; "" where nothing was ever lent.
  std::string ShowModels() const;

 private:
  std::vector<Pair> pairs_;
  std::vector<Model> models_;
};

}  // namespace swiftcache::services::ctl
