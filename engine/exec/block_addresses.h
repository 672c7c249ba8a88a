// SPDX-License-Identifier: Apache-2.0
// Where the blocks of a sequence lie, kept from step to step.
//
//   addresses.Follow(cache, sequence.blocks, [&](kv::Place place) { return base_of(place) + place.index * bytes; });
//   step.blocks = addresses.all();
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/functional/function_ref.h"
#include "engine/backend/device_address.h"
#include "engine/kv/sequence_blocks.h"

namespace swiftcache::engine::exec {

/// As kv::LeasedCount, with places, counts by lease, and addresses in the order of the blocks. A step of a long sequence
/// costs the blocks that came or changed places since the last one, and not all of them. Thread-safety: none. Ownership: a
/// value, and what it was made from need not outlive it. Errors: none.
class BlockAddresses {
 public:
  /// Brings everything up to date. REQUIRES: what `address_of` says of a place is the same each time.
  void Follow(const kv::SequenceBlocks& cache, const kv::BlockTable& table,
              absl::FunctionRef<backend::DeviceAddress(kv::Place)> address_of);

  int64_t size() const { return static_cast<int64_t>(addresses_.size()); }
  /// Valid until the next Follow.
  std::span<const backend::DeviceAddress> all() const { return addresses_; }
  kv::Place place(int64_t block) const { return places_[block]; }
  /// Of a block that lies in a lease, for this step.
  void Set(int64_t block, backend::DeviceAddress address) { addresses_[block] = address; }

  /// How many blocks lie in each lease that some lie in.
  const absl::btree_map<kv::RegionId, int64_t>& by_lease() const { return by_lease_; }
  int64_t num_leased() const { return num_leased_; }

 private:
  void Count(kv::Place place, int64_t sign);

  kv::PlaceCursor cursor_;
  std::vector<kv::Place> places_;
  std::vector<backend::DeviceAddress> addresses_;
  absl::btree_map<kv::RegionId, int64_t> by_lease_;
  int64_t num_leased_ = 0;
};

}  // namespace swiftcache::engine::exec
