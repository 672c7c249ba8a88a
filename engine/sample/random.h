// SPDX-License-Identifier: Apache-2.0
// Random numbers without a state: each is a function of the draw's identity, so other requests cannot change it.
//
//   double u = UniformAt({.seed = params.seed, .continuation = 0, .position = 17});
#pragma once

#include <array>
#include <cstdint>

namespace swiftcache::engine::sample {

/// One block of Philox4x32 with 10 rounds (Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC'11).
std::array<uint32_t, 4> Philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);

/// Names one draw of one request.
struct DrawId {
  uint64_t seed = 0;
  int32_t continuation = 0;  // index among the n of a request
  int64_t position = 0;      // of the token drawn, counted from the prompt's first
};

/// Uniform in [0, 1) with 53 random bits.
double UniformAt(const DrawId& id);

}  // namespace swiftcache::engine::sample
