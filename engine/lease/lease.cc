// SPDX-License-Identifier: Apache-2.0
#include "engine/lease/lease.h"

#include <limits>

namespace swiftcache::engine::lease {

bool Overlap(const Extent& a, const Extent& b) {
  return a.first_block < b.first_block + b.num_blocks && b.first_block < a.first_block + a.num_blocks;
}

bool IsWellFormed(const Extent& extent) {
  return extent.first_block >= 0 && extent.num_blocks >= 1 &&
         extent.num_blocks <= std::numeric_limits<int64_t>::max() - extent.first_block;
}

const char* StateName(State state) {
  switch (state) {
    case State::kOffered:
      return "offered";
    case State::kGranted:
      return "granted";
    case State::kActive:
      return "active";
    case State::kRevoking:
      return "revoking";
    case State::kReleased:
      return "released";
    case State::kFenced:
      return "fenced";
  }
  return "unknown";
}

}  // namespace swiftcache::engine::lease
