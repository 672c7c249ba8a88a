// SPDX-License-Identifier: Apache-2.0
#include "engine/lease/lease.h"

namespace swiftcache::engine::lease {

bool Overlap(const Extent& a, const Extent& b) {
  return a.first_block < b.first_block + b.num_blocks && b.first_block < a.first_block + a.num_blocks;
}

bool LiesIn(const Extent& extent, int64_t num_blocks) {
  return extent.first_block >= 0 && extent.num_blocks >= 1 && extent.num_blocks <= num_blocks &&
         extent.first_block <= num_blocks - extent.num_blocks;
}

kv::PlaceRun PlacesOf(const Extent& extent) {
  return {static_cast<int32_t>(extent.first_block), static_cast<int32_t>(extent.num_blocks)};
}

const char* StateName(State state) {
  switch (state) {
    case State::kOffered:
      return "offered";
    case State::kGranted:
      return "granted";
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
