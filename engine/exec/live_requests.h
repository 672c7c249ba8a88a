// SPDX-License-Identifier: Apache-2.0
// The requests inside the loop, and what they come to together.
//
//   LiveRequest& request = requests.Add(std::move(accepted));
//   Continuation* first = requests.Begin(request);
//   requests.Append(*first, token);
//   std::unique_ptr<LiveRequest> ended = requests.Take(request);
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "engine/exec/live_request.h"

namespace swiftcache::engine::exec {

/// How many of what has a length have which. Thread-safety: none. Ownership: a value. Errors: none. Cost: O(1) each, a
/// Remove of the longest amortised over what made it so long. Memory: a word for each token of the longest ever.
class LengthCounts {
 public:
  void Add(int64_t length);
  /// REQUIRES: added, and not removed since.
  void Remove(int64_t length);
  /// 0: there is none.
  int64_t longest() const { return longest_; }
  int64_t count(int64_t length) const { return length < static_cast<int64_t>(counts_.size()) ? counts_[length] : 0; }

 private:
  std::vector<int64_t> counts_;  // by length
  int64_t longest_ = 0;
};

/// What is asked of all of them costs its answer, whatever their number. Thread-safety: none; the step loop's. Ownership:
/// owns the requests. Errors: none. Units: tokens.
class LiveRequests {
 public:
  explicit LiveRequests(int64_t block_tokens) : block_tokens_(block_tokens) {}

  using ById = absl::flat_hash_map<std::string, std::unique_ptr<LiveRequest>>;

  /// REQUIRES: none of them has its id.
  LiveRequest& Add(std::unique_ptr<LiveRequest> request);
  /// Null: there is none.
  LiveRequest* Find(const std::string& request_id) const;
  /// Gives it away, parked no longer. REQUIRES: it is here.
  std::unique_ptr<LiveRequest> Take(LiveRequest& request);
  /// Adds the request's next continuation.
  Continuation* Begin(LiveRequest& request);
  /// A token that was chosen for it.
  void Append(Continuation& continuation, int32_t token);

  bool empty() const { return by_id_.empty(); }
  int64_t size() const { return static_cast<int64_t>(by_id_.size()); }
  const ById& by_id() const { return by_id_; }
  /// Of a continuation, of those that have ended too while their request lives.
  int64_t longest_tokens() const { return lengths_.longest(); }

  /// Sets aside a request that not even all leases that there may be could hold. REQUIRES: its first continuation has
  /// begun, and no other.
  void Park(LiveRequest& request);
  void Unpark(LiveRequest& request);
  bool any_parked() const { return !parked_.empty(); }
  /// Of those parked, who wants memory for the fewest tokens to begin, and for the most. REQUIRES: any_parked().
  LiveRequest& least_parked() const { return **parked_.begin(); }
  LiveRequest& most_parked() const { return **parked_.rbegin(); }
  int64_t parked_tokens() const { return parked_tokens_; }

  /// Recounts. INTERNAL says what does not add up.
  absl::Status CheckInvariants() const;

 private:
  struct ByNeed {
    bool operator()(const LiveRequest* a, const LiveRequest* b) const {
      if (a->tokens_to_begin() != b->tokens_to_begin()) return a->tokens_to_begin() < b->tokens_to_begin();
      return a->first_sequence < b->first_sequence;
    }
  };

  const int64_t block_tokens_;
  ById by_id_;
  LengthCounts lengths_;  // of all continuations
  std::set<LiveRequest*, ByNeed> parked_;
  int64_t parked_tokens_ = 0;
};

}  // namespace swiftcache::engine::exec
