// SPDX-License-Identifier: Apache-2.0
#include "engine/exec/block_addresses.h"

#include <utility>

namespace swiftcache::engine::exec {

void BlockAddresses::Follow(const kv::SequenceBlocks& cache, const kv::BlockTable& table,
                            absl::FunctionRef<backend::DeviceAddress(kv::Place)> address_of) {
  for (; size() > table.size(); addresses_.pop_back(), places_.pop_back()) Count(places_.back(), -1);
  cache.FollowPlaces(table, cursor_, [&](int64_t block) {
    const kv::Place place = cache.place(table[block]);
    if (block == size()) {
      places_.push_back(place);
      addresses_.push_back(address_of(place));
    } else {
      Count(std::exchange(places_[block], place), -1);
      addresses_[block] = address_of(place);
    }
    Count(place, +1);
  });
}

void BlockAddresses::Count(kv::Place place, int64_t sign) {
  if (place.local()) return;
  num_leased_ += sign;
  const auto count = by_lease_.try_emplace(place.region, 0).first;
  count->second += sign;
  if (count->second == 0) by_lease_.erase(count);
}

}  // namespace swiftcache::engine::exec
