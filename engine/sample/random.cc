// SPDX-License-Identifier: Apache-2.0
#include "engine/sample/random.h"

namespace swiftcache::engine::sample {
namespace {

constexpr uint32_t kMultiplier0 = 0xD2511F53, kMultiplier1 = 0xCD9E8D57;
constexpr uint32_t kWeyl0 = 0x9E3779B9, kWeyl1 = 0xBB67AE85;

uint32_t High(uint64_t x) { return static_cast<uint32_t>(x >> 32); }
uint32_t Low(uint64_t x) { return static_cast<uint32_t>(x); }

}  // namespace

std::array<uint32_t, 4> Philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = uint64_t{kMultiplier0} * counter[0];
    const uint64_t product1 = uint64_t{kMultiplier1} * counter[2];
    counter = {High(product1) ^ counter[1] ^ key[0], Low(product1), High(product0) ^ counter[3] ^ key[1],
               Low(product0)};
    key[0] += kWeyl0;
    key[1] += kWeyl1;
  }
  return counter;
}

double UniformAt(const DrawId& id) {
  const uint64_t position = static_cast<uint64_t>(id.position);
  const auto block = Philox4x32({Low(position), High(position), static_cast<uint32_t>(id.continuation), 0},
                                {Low(id.seed), High(id.seed)});
  const uint64_t bits = (uint64_t{block[0]} << 32 | block[1]) >> 11;
  return static_cast<double>(bits) * 0x1.0p-53;
}

}  // namespace swiftcache::engine::sample
