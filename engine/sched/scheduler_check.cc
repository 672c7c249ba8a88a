// SPDX-License-Identifier: Apache-2.0
// What must hold in a scheduler whatever was done to it.
#include <algorithm>
#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/sched/scheduler.h"

namespace swiftcache::engine::sched {

absl::Status Scheduler::CheckInvariants() const {
  std::vector<const kv::BlockTable*> tables;
  std::set<const void*> groups;
  int64_t waiting_tokens = 0;
  for (const Sequence* sequence : running_) {
    tables.push_back(&sequence->blocks);
    groups.insert(sequence->group != nullptr ? static_cast<const void*>(sequence->group) : sequence);
    if (sequence->blocks.size() < cache_->BlocksFor(sequence->computed_tokens)) {
      return absl::InternalError(absl::StrCat("sequence ", sequence->id.value(), " has ", sequence->blocks.size(),
                                              " blocks for ", sequence->computed_tokens, " computed tokens"));
    }
  }
  for (const Sequence* sequence : waiting_) {
    waiting_tokens += sequence->tokens.size();
    if (sequence->blocks.size() != 0 || sequence->computed_tokens != 0 || sequence->owned_only) {
      return absl::InternalError(absl::StrCat("sequence ", sequence->id.value(), " waits and holds blocks"));
    }
  }
  if (!std::is_sorted(running_.begin(), running_.end(), ServedBefore())) {
    return absl::InternalError("running sequences are out of order");
  }
  if (waiting_tokens != waiting_tokens_ || static_cast<int64_t>(groups.size()) != num_running_groups_) {
    return absl::InternalError(absl::StrCat(waiting_tokens, " tokens wait, counted ", waiting_tokens_, "; ",
                                            groups.size(), " groups run, counted ", num_running_groups_));
  }
  return cache_->CheckInvariants(tables);
}

}  // namespace swiftcache::engine::sched
