// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <limits>

#include "engine/backend/cpu/int8_row.h"
#include "engine/backend/cpu/kernels.h"
#include "tests/engine/backend/cpu/backend_test_util.h"

namespace swiftcache::engine::backend::cpu {
namespace {

// As int8_row.h defines it. REQUIRES: x [32] is finite.
Int8Group Reference(const float* x, int zero, int inputs) {
  Int8Group group;
  float largest = 0;
  for (int64_t i = 0; i < kInt8Inputs; ++i) largest = std::max(largest, std::abs(x[i]));
  const float factor = largest < 1e-30f ? 0.0f : 127.0f / largest;
  int32_t sums[2] = {};
  for (int64_t i = 0; i < kInt8Inputs; ++i) {
    group.codes[i] = static_cast<int8_t>(std::nearbyint(x[i] * factor));
    sums[i / inputs] += group.codes[i];
  }
  group.scale = largest / 127.0f;
  group.sum = group.scale * static_cast<float>(sums[0] + sums[1]);
  for (int i = 0; i < 2; ++i) group.starts[i] = -zero * sums[i];
  return group;
}

// Groups of all magnitudes: of the least and the largest numbers, of zeroes of both signs, of ties.
std::vector<float> Groups(int64_t groups) {
  const float scales[] = {1.0f, 1e-30f, 0.0f, 300.0f, 1e-42f, 1e37f, -0.0f, 2e-31f, 1e-3f};
  std::vector<float> x = RandomVector(groups * kInt8Inputs, static_cast<uint32_t>(groups));
  for (int64_t g = 0; g < groups; ++g) {
    for (int64_t i = 0; i < kInt8Inputs; ++i) {
      float& value = x[g * kInt8Inputs + i];
      value = g % 11 == 10 ? (i == 0 ? 127.0f : static_cast<float>(i) - 15.5f) : value * scales[g % 11 % 9];
    }
  }
  return x;
}

bool SameBits(const Int8Group& a, const Int8Group& b) { return std::memcmp(&a, &b, sizeof(a)) == 0; }

TEST(RowKernelsTest, Int8GroupsHaveTheReferencesBits) {
  for (const Isa isa : kAllIsas) {
    if (BestIsa(isa) != isa) continue;
    const Kernels kernels = KernelsFor(isa);
    for (const int64_t groups : {1, 2, 3, 4, 5, 6, 7, 8, 9, 18, 48, 53}) {
      const std::vector<float> x = Groups(groups);
      for (const int inputs : {32, 16}) {
        for (const int zero : {0, 8, 32, 128}) {
          Int8Group beyond;
          std::fill_n(beyond.codes, kInt8Inputs, int8_t{77});
          std::vector<Int8Group> found(groups + 1, beyond);
          kernels.to_int8(x.data(), groups, zero, inputs, found.data());
          for (int64_t g = 0; g < groups; ++g) {
            EXPECT_TRUE(SameBits(found[g], Reference(&x[g * kInt8Inputs], zero, inputs)))
                << IsaName(isa) << " group " << g << " of " << groups << " zero " << zero << " inputs " << inputs;
          }
          EXPECT_TRUE(std::equal(beyond.codes, beyond.codes + kInt8Inputs, found[groups].codes)) << "beyond the row";
        }
      }
    }
  }
}

TEST(RowKernelsTest, AnInt8GroupThatIsNotFiniteHasSuchAScaleAndLeavesTheOthersAlone) {
  constexpr int64_t kGroups = 6;
  const float infinity = std::numeric_limits<float>::infinity();
  for (const Isa isa : kAllIsas) {
    if (BestIsa(isa) != isa) continue;
    const Kernels kernels = KernelsFor(isa);
    for (int64_t at = 0; at < kGroups * kInt8Inputs; ++at) {
      for (const float value : {std::nanf(""), -std::nanf(""), infinity, -infinity}) {
        std::vector<float> x = Groups(kGroups);
        x[at] = value;
        Int8Group found[kGroups];
        kernels.to_int8(x.data(), kGroups, 8, 32, found);
        for (int64_t g = 0; g < kGroups; ++g) {
          const bool same = g != at / kInt8Inputs && SameBits(found[g], Reference(&x[g * kInt8Inputs], 8, 32));
          const bool not_finite = g == at / kInt8Inputs && !std::isfinite(found[g].scale);
          EXPECT_TRUE(same || not_finite) << IsaName(isa) << " group " << g << ": " << value << " at " << at;
        }
      }
    }
  }
}

TEST(RowKernelsTest, ARemainderIsRoundedOnce) {
  constexpr int64_t kGroups = 11;
  for (const Isa isa : kAllIsas) {
    if (isa == Isa::kBaseline || BestIsa(isa) != isa) continue;  // it has no FMA, and no products of such rows
    const Kernels kernels = KernelsFor(isa);
    const std::vector<float> x = Groups(kGroups);
    std::vector<float> found = x;
    Int8Group of_x[kGroups];
    kernels.to_int8(x.data(), kGroups, 8, 32, of_x);
    kernels.residual(found.data(), kGroups, of_x);
    for (int64_t i = 0; i < kGroups * kInt8Inputs; ++i) {
      const Int8Group& group = of_x[i / kInt8Inputs];
      EXPECT_EQ(found[i], std::fma(-static_cast<float>(group.codes[i % kInt8Inputs]), group.scale, x[i]))
          << IsaName(isa) << " input " << i;
    }
  }
}

}  // namespace
}  // namespace swiftcache::engine::backend::cpu
