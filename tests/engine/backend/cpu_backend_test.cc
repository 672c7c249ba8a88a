// SPDX-License-Identifier: Apache-2.0
#include "engine/backend/cpu/cpu_backend.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/engine/backend/backend_test_util.h"

namespace swiftcache::engine::backend::cpu {
namespace {

CpuBackendOptions Valid() {
  CpuBackendOptions options;
  options.attention = {4, 2, 8};
  options.kv = {1, 2, 8, 16, KvDtype::kBf16};
  options.inverse_frequencies.assign(4, 1.0f);
  return options;
}

TEST(CpuBackendTest, RefusesOptionsThatContradictEachOther) {
  ASSERT_TRUE(CreateCpuBackend(Valid()).ok());
  const auto refuses = [](auto change) {
    CpuBackendOptions options = Valid();
    change(options);
    return CreateCpuBackend(options).status().code() == absl::StatusCode::kInvalidArgument;
  };
  EXPECT_TRUE(refuses([](CpuBackendOptions& o) { o.threads = 0; }));
  EXPECT_TRUE(refuses([](CpuBackendOptions& o) { o.max_rows = 0; }));
  EXPECT_TRUE(refuses([](CpuBackendOptions& o) { o.attention.num_heads = 5; }));
  EXPECT_TRUE(refuses([](CpuBackendOptions& o) { o.attention.head_dim = 7; }));
  EXPECT_TRUE(refuses([](CpuBackendOptions& o) { o.kv.head_dim = 16; }));
  EXPECT_TRUE(refuses([](CpuBackendOptions& o) { o.kv.block_tokens = 0; }));
  EXPECT_TRUE(refuses([](CpuBackendOptions& o) { o.inverse_frequencies.clear(); }));
}

TEST(CpuBackendTest, MemoryThatIsNotThereIsAnErrorThatNamesTheBytes) {
  auto backend = MakeBackend({});
  const absl::Status status = backend->Allocate(int64_t{1} << 40, 32).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("140737488355456"));  // 2^47 and what padding adds
}

TEST(CpuBackendTest, TheNameTellsIsaAndPrecision) {
  EXPECT_EQ(MakeBackend({.precision = Precision::kF32, .max_isa = Isa::kBaseline})->name(), "cpu/baseline/f32");
}

TEST(CpuBackendTest, Bf16RoundsToNearestEvenAndKeepsNan) {
  EXPECT_EQ(FromBf16(ToBf16(1.0f)), 1.0f);
  EXPECT_EQ(ToBf16(1.00390625f), 0x3f80);  // a tie, to even
  EXPECT_EQ(ToBf16(1.01171875f), 0x3f82);  // a tie, to even, upwards
  EXPECT_EQ(ToBf16(-3.4e38f), 0xff80);     // rounds to infinity
  EXPECT_TRUE(std::isnan(FromBf16(ToBf16(std::nanf("")))));
}

// The vector form must round as the scalar one, which stores KV.
TEST(CpuBackendTest, EveryIsaRoundsToBf16Alike) {
  std::vector<float> values = RandomVector(1024, 3);
  for (int i = 0; i < 64; ++i) values.push_back(std::ldexp(1.0f + (2 * i + 1) / 256.0f, i - 32));  // ties
  values.insert(values.end(), {0.0f, -0.0f, INFINITY, -INFINITY, 3.4e38f, 1e-42f, std::nanf("")});
  const int64_t n = values.size();
  values.resize(PadToPanel(n));
  for (const Isa isa : kAllIsas) {
    if (BestIsa(isa) != isa) continue;
    std::vector<Bf16> out(PadToPanel(n));
    KernelsFor(isa).to_bf16(values.data(), n, out.data());
    for (int64_t i = 0; i < n; ++i) EXPECT_EQ(out[i], ToBf16(values[i])) << IsaName(isa) << " " << values[i];
  }
}

}  // namespace
}  // namespace swiftcache::engine::backend::cpu
