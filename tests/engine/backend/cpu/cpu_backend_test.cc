// SPDX-License-Identifier: Apache-2.0
#include "engine/backend/cpu/cpu_backend.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <span>
#include <vector>

#include "tests/engine/backend/cpu/backend_test_util.h"

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

TEST(CpuBackendTest, TellsWhatItRoundsRowsTo) {
  const QuantizedWeights q8(WeightFormat::kQ8_0, 32, 256, 1), q6(WeightFormat::kQ6_K, 32, 256, 2);
  const std::vector<float> f32(32 * 32, 0.5f);
  const auto rows = [&](Activations activations, Isa isa, std::vector<WeightSource> sources,
                        Exactness exactness = Exactness::kUsual) {
    auto backend = MakeBackend({.activations = activations, .max_isa = isa});
    for (const WeightSource& source : sources) EXPECT_TRUE(backend->PackMatrix({&source, 1}, exactness).ok());
    return backend->weights().rows;
  };
  EXPECT_EQ(rows(Activations::kAuto, Isa::kBaseline, {q8.source()}), "f32");
  if (BestIsa(Isa::kAvx2) == Isa::kAvx2) {
    EXPECT_EQ(rows(Activations::kAuto, Isa::kAvx2, {q8.source()}), "int8");
    EXPECT_EQ(rows(Activations::kAuto, Isa::kAvx2, {q8.source()}, Exactness::kHigh), "f32");
    EXPECT_EQ(rows(Activations::kAuto, Isa::kAvx2, {q6.source()}, Exactness::kHigh), "int8 twice");
    EXPECT_EQ(rows(Activations::kAuto, Isa::kAvx2, {q8.source(), q6.source()}, Exactness::kHigh), "int8 twice and f32");
    EXPECT_EQ(rows(Activations::kAuto, Isa::kAvx2, {SourceOf(f32, 32, 32)}), "f32");
    EXPECT_EQ(rows(Activations::kInt8, Isa::kAvx2, {q8.source(), q6.source()}, Exactness::kHigh), "int8");
    EXPECT_EQ(rows(Activations::kInt8, Isa::kAvx2, {q8.source(), SourceOf(f32, 32, 32)}), "int8 and f32");
    EXPECT_EQ(rows(Activations::kF32, kHighestIsa, {q8.source(), q6.source()}), "f32");
  }
  if (BestIsa(Isa::kAvx512Vnni) == Isa::kAvx512Vnni) {
    EXPECT_EQ(rows(Activations::kAuto, Isa::kAvx512Vnni, {q8.source()}, Exactness::kHigh), "int8 twice");
  }
  if (MultipliesBf16(BestIsa())) {
    EXPECT_EQ(rows(Activations::kAuto, kHighestIsa, {q8.source(), q6.source()}, Exactness::kHigh), "bf16");
    EXPECT_EQ(rows(Activations::kBf16, kHighestIsa, {q8.source(), q6.source()}), "bf16");
  }
}

TEST(CpuBackendTest, Int8WantsIntegerProducts) {
  CpuBackendOptions options{.activations = Activations::kInt8, .max_isa = Isa::kBaseline, .attention = {2, 1, 4}};
  EXPECT_EQ(CreateCpuBackend(options).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(CpuBackendTest, TellsWhichOfTheMatricesItRounded) {
  const std::vector<float> exact(4 * 32, 0.5f), rounded(6 * 32, 1 / 3.0f), norm(32, 1 / 3.0f);
  const std::vector<uint16_t> halves(2 * 32, 0x3555);  // f16 has 11 significant bits
  WeightSource f16 = SourceOf(exact, 2, 32);
  f16.format = WeightFormat::kF16;
  f16.data = reinterpret_cast<const std::byte*>(halves.data());
  f16.row_bytes = RowBytes(WeightFormat::kF16, 32);
  const std::vector<WeightSource> stacked = {SourceOf(exact, 4, 32), SourceOf(rounded, 6, 32)};
  for (const Precision precision : {Precision::kBf16, Precision::kF32}) {
    auto backend = MakeBackend({.precision = precision});
    EXPECT_TRUE(backend->weights().stored.empty());
    auto first = backend->PackMatrix(stacked, Exactness::kUsual),
         second = backend->PackMatrix({&f16, 1}, Exactness::kUsual);
    auto vector = UploadVector(*backend, norm);
    ASSERT_TRUE(first.ok() && second.ok());
    EXPECT_THAT(backend->weights().stored,
                testing::ElementsAre(testing::Pair(WeightFormat::kF32, 2), testing::Pair(WeightFormat::kF16, 1)));
    const bool f32 = precision == Precision::kF32;
    EXPECT_EQ(backend->weights().packed, f32 ? "f32" : "bf16");
    EXPECT_EQ(backend->weights().rounded, f32 ? 0 : 2);
    EXPECT_EQ(backend->weights().largest_relative_error > 0, !f32);
  }
}

TEST(CpuBackendTest, VectorsAreF32InEveryPrecisionOneAfterTheOther) {
  const std::vector<float> first = RandomVector(7, 1), second = RandomVector(40, 2);
  const std::vector<WeightSource> parts = {SourceOf(first, 1, 7), SourceOf(second, 1, 40)};
  std::vector<float> wanted = first;
  wanted.insert(wanted.end(), second.begin(), second.end());
  for (const Precision precision : {Precision::kBf16, Precision::kF32}) {
    auto backend = MakeBackend({.precision = precision});
    auto vector = backend->UploadVector(parts);
    ASSERT_TRUE(vector.ok()) << vector.status();
    EXPECT_TRUE(SameBits(Values(**vector, 1), wanted));
  }
}

TEST(CpuBackendTest, RowsThatAreKeptAreThoseThatWereThere) {
  const auto backend = MakeBackend({});
  const std::vector<float> before = RandomVector(5 * 21, 1);
  const auto first = MakeBuffer(*backend, before, 21), second = MakeBuffer(*backend, before, 21);
  const std::array<Buffer*, 2> buffers = {first.get(), second.get()};
  const std::vector<int32_t> kept = {1, 2, 4};
  ASSERT_TRUE(backend->KeepRows(kept, buffers).ok());
  for (Buffer* buffer : buffers) {
    const std::vector<float> found = Values(*buffer, 3);
    for (int64_t row = 0; row < 3; ++row) {
      EXPECT_TRUE(SameBits(std::span(found).subspan(row * 21, 21), std::span(before).subspan(kept[row] * 21, 21)));
    }
  }
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
