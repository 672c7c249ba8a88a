// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <numeric>

#include "common/base/units.h"
#include "tests/engine/backend/cpu/backend_test_util.h"

namespace swiftcache::engine::backend::cpu {
namespace {

struct Shape {
  int64_t rows, inputs, outputs;
};

// One product in double precision. `round` is what the path under test does to weights and activations.
struct Oracle {
  Prologue prologue = Prologue::kNone;
  bool bf16_weights = false, bf16_rows = false;
  float eps = 1e-5f;
  std::vector<float> in = {}, norm = {}, weight = {}, bias = {}, residual = {};  // bias, residual may be empty
  std::shared_ptr<QuantizedWeights> quantized = {};                              // nothing: `weight` is stored as f32

  std::vector<double> Prepared(int64_t row, int64_t inputs) const {
    std::vector<double> x(inputs);
    const int64_t stride = prologue == Prologue::kSiluMul ? 2 * inputs : inputs;
    const float* from = in.data() + row * stride;
    double squares = 0;
    for (int64_t k = 0; k < inputs; ++k) squares += double{from[k]} * from[k];
    for (int64_t k = 0; k < inputs; ++k) {
      x[k] = from[k];
      if (prologue == Prologue::kRmsNorm) x[k] = from[k] / std::sqrt(squares / inputs + eps) * norm[k];
      if (prologue == Prologue::kSiluMul) x[k] = from[k] / (1 + std::exp(-double{from[k]})) * from[inputs + k];
      if (bf16_rows) x[k] = RoundToBf16(x[k]);
    }
    return x;
  }
  std::vector<double> Product(const Shape& s) const {
    std::vector<double> out;
    for (int64_t m = 0; m < s.rows; ++m) {
      const std::vector<double> x = Prepared(m, s.inputs);
      for (int64_t n = 0; n < s.outputs; ++n) {
        double sum = (bias.empty() ? 0 : bias[n]) + (residual.empty() ? 0 : residual[m * s.outputs + n]);
        for (int64_t k = 0; k < s.inputs; ++k) {
          const double w = weight[n * s.inputs + k];
          sum += x[k] * (bf16_weights ? RoundToBf16(w) : w);
        }
        out.push_back(sum);
      }
    }
    return out;
  }
};

struct Case {
  Isa isa;
  Precision precision;
  int threads = 2;
};

std::vector<Case> AllCases() {
  std::vector<Case> cases;
  for (const Isa isa : kAllIsas) {
    if (BestIsa(isa) != isa) continue;  // the machine lacks it
    cases.push_back({isa, Precision::kF32});
    cases.push_back({isa, Precision::kBf16});
  }
  return cases;
}

Oracle MakeOracle(const Case& c, const Shape& s, Prologue prologue, bool bias, bool add) {
  Oracle o{.prologue = prologue,
           .bf16_weights = c.precision == Precision::kBf16,
           .bf16_rows = c.precision == Precision::kBf16 && c.isa == Isa::kAvx512Bf16};
  o.in = RandomVector(s.rows * s.inputs * (prologue == Prologue::kSiluMul ? 2 : 1), 1);
  o.norm = RandomVector(s.inputs, 2);
  o.weight = RandomVector(s.inputs * s.outputs, 3, 1.0f / std::sqrt(static_cast<float>(s.inputs)));
  if (bias) o.bias = RandomVector(s.outputs, 4);
  if (add) o.residual = RandomVector(s.rows * s.outputs, 5);
  return o;
}

std::vector<float> RunLinear(const Case& c, const Shape& s, const Oracle& o) {
  auto backend = MakeBackend(
      {.threads = c.threads, .precision = c.precision, .max_isa = c.isa, .max_rows = std::max<int64_t>(s.rows, 8)});
  const WeightSource source = o.quantized ? o.quantized->source() : SourceOf(o.weight, s.outputs, s.inputs);
  auto weight = *backend->PackMatrix({&source, 1});
  auto in = MakeBuffer(*backend, o.in, o.in.size() / s.rows);
  auto norm = UploadVector(*backend, o.norm);
  auto bias = o.bias.empty() ? nullptr : UploadVector(*backend, o.bias);
  auto out = o.residual.empty() ? *backend->Allocate(s.rows, s.outputs) : MakeBuffer(*backend, o.residual, s.outputs);
  EXPECT_TRUE(backend
                  ->Linear({.in = in.get(),
                            .rows = s.rows,
                            .prologue = o.prologue,
                            .norm = norm.get(),
                            .eps = o.eps,
                            .weight = weight.get(),
                            .bias = bias.get(),
                            .add = !o.residual.empty(),
                            .out = out.get()})
                  .ok());
  return Values(*out, s.rows);
}

TEST(LinearTest, EveryIsaPrecisionAndOddShapeMatchesTheOracle) {
  int compared = 0;
  for (const Case& c : AllCases()) {
    for (const Shape& s : {Shape{1, 1, 1}, Shape{1, 576, 64}, Shape{2, 7, 33}, Shape{3, 31, 95}, Shape{5, 64, 32},
                           Shape{13, 33, 601}, Shape{29, 144, 40}, Shape{200, 50, 70}}) {
      for (const Prologue prologue : {Prologue::kNone, Prologue::kRmsNorm, Prologue::kSiluMul}) {
        for (const bool extras : {false, true}) {
          const Oracle o = MakeOracle(c, s, prologue, extras, extras);
          const std::vector<double> wanted = o.Product(s);
          const std::vector<float> found = RunLinear(c, s, o);
          // Where rows are rounded to bf16, an activation one float away may fall to the other side of a tie.
          const double tolerance = o.bf16_rows && prologue != Prologue::kNone ? 2e-2 : 2e-5;
          ASSERT_EQ(found.size(), wanted.size());
          for (size_t i = 0; i < wanted.size(); ++i, ++compared) {
            ASSERT_NEAR(found[i], wanted[i], tolerance * (1 + std::abs(wanted[i])))
                << IsaName(c.isa) << " rows " << s.rows << " inputs " << s.inputs << " outputs " << s.outputs << " at "
                << i;
          }
        }
      }
    }
  }
  EXPECT_GT(compared, 100000);
}

TEST(LinearTest, ARowsBitsDoNotDependOnRowCountOrThreads) {
  const Shape all{512, 130, 97};
  for (Case c : AllCases()) {
    const Oracle o = MakeOracle(c, all, Prologue::kRmsNorm, true, true);
    c.threads = 1;
    const std::vector<float> wanted = RunLinear(c, all, o);
    for (const int64_t rows : {1, 2, 3, 5, 7, 16, 33, 64, 512}) {
      for (const int threads : {1, 2, 3}) {
        c.threads = threads;
        // The last `rows` rows, so that a row also changes its place.
        Oracle part = o;
        part.in.assign(o.in.end() - rows * all.inputs, o.in.end());
        part.residual.assign(o.residual.end() - rows * all.outputs, o.residual.end());
        const std::vector<float> found = RunLinear(c, {rows, all.inputs, all.outputs}, part);
        EXPECT_TRUE(SameBits(found, std::span(wanted).last(rows * all.outputs)))
            << IsaName(c.isa) << " rows " << rows << " threads " << threads;
      }
    }
  }
}

// Of a stored format whose weights stay as they are: nothing but the rows is rounded.
Oracle MakeQuantizedOracle(const Case& c, const Shape& s, WeightFormat format, Prologue prologue, bool extras) {
  Oracle o = MakeOracle(c, s, prologue, extras, extras);
  o.bf16_weights = false;
  o.quantized = std::make_shared<QuantizedWeights>(format, s.outputs, s.inputs, 6);
  o.weight = o.quantized->Values();
  return o;
}

TEST(LinearTest, WeightsThatStayQuantisedMatchTheOracle) {
  int compared = 0;
  for (const Case& c : AllCases()) {
    for (const WeightFormat format : kBlockFormats) {
      for (Shape s : {Shape{1, 32, 1}, Shape{1, 576, 64}, Shape{2, 64, 33}, Shape{3, 96, 95}, Shape{5, 64, 32},
                      Shape{13, 32, 601}, Shape{29, 160, 40}, Shape{200, 64, 70}}) {
        s.inputs = CeilDiv(s.inputs, BlockOf(format).elements) * BlockOf(format).elements;
        for (const bool extras : {false, true}) {
          const Prologue prologue = extras ? Prologue::kRmsNorm : Prologue::kNone;
          const Oracle o = MakeQuantizedOracle(c, s, format, prologue, extras);
          const std::vector<double> wanted = o.Product(s);
          const std::vector<float> found = RunLinear(c, s, o);
          // Sums of products up to 10 cancel each other out. As above, an activation may fall to the other side of a tie.
          const double tolerance = o.bf16_rows && prologue != Prologue::kNone ? 5e-2 : 1e-4;
          ASSERT_EQ(found.size(), wanted.size());
          for (size_t i = 0; i < wanted.size(); ++i, ++compared) {
            ASSERT_NEAR(found[i], wanted[i], tolerance * (1 + std::abs(wanted[i])))
                << NameOf(format) << " " << IsaName(c.isa) << " rows " << s.rows << " inputs " << s.inputs
                << " outputs " << s.outputs << " at " << i;
          }
        }
      }
    }
  }
  EXPECT_GT(compared, 100000);
}

TEST(LinearTest, ARowsBitsOverQuantisedWeightsDoNotDependOnRowCountOrThreads) {
  for (Case c : AllCases()) {
    for (const WeightFormat format : kBlockFormats) {
      const Shape all{256, CeilDiv(160, BlockOf(format).elements) * BlockOf(format).elements, 97};
      const Oracle o = MakeQuantizedOracle(c, all, format, Prologue::kRmsNorm, true);
      c.threads = 1;
      const std::vector<float> wanted = RunLinear(c, all, o);
      for (const int64_t rows : {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 13, 33, 256}) {
        c.threads = 1 + static_cast<int>(rows % 3);
        Oracle part = o;
        part.in.assign(o.in.end() - rows * all.inputs, o.in.end());
        part.residual.assign(o.residual.end() - rows * all.outputs, o.residual.end());
        const std::vector<float> found = RunLinear(c, {rows, all.inputs, all.outputs}, part);
        EXPECT_TRUE(SameBits(found, std::span(wanted).last(rows * all.outputs)))
            << NameOf(format) << " " << IsaName(c.isa) << " rows " << rows;
      }
    }
  }
}

TEST(LinearTest, InRowsPicksRowsOfTheInput) {
  for (const Case& c : AllCases()) {
    const Shape s{9, 40, 36};
    const Oracle o = MakeOracle(c, s, Prologue::kRmsNorm, false, false);
    const std::vector<float> all = RunLinear(c, s, o);
    auto backend = MakeBackend({.threads = 2, .precision = c.precision, .max_isa = c.isa});
    const WeightSource source = SourceOf(o.weight, s.outputs, s.inputs);
    auto weight = *backend->PackMatrix({&source, 1});
    auto in = MakeBuffer(*backend, o.in, s.inputs);
    auto norm = UploadVector(*backend, o.norm);
    auto out = *backend->Allocate(2, s.outputs);
    const std::vector<int32_t> picked = {2, 8};
    ASSERT_TRUE(backend
                    ->Linear({.in = in.get(),
                              .rows = 2,
                              .in_rows = picked,
                              .prologue = Prologue::kRmsNorm,
                              .norm = norm.get(),
                              .eps = o.eps,
                              .weight = weight.get(),
                              .out = out.get()})
                    .ok());
    const std::span<const float> found = *backend->Download(*out, 2);
    EXPECT_TRUE(SameBits(found.first(36), std::span(all).subspan(2 * 36, 36)));
    EXPECT_TRUE(SameBits(found.last(36), std::span(all).subspan(8 * 36, 36)));
  }
}

TEST(LinearTest, StackedSourcesAreOneMatrixAndEmbedReadsItsRows) {
  for (const Case& c : AllCases()) {
    const std::vector<float> first = RandomVector(5 * 9, 1), second = RandomVector(30 * 9, 2);
    auto backend = MakeBackend({.threads = 2, .precision = c.precision, .max_isa = c.isa});
    const WeightSource sources[] = {SourceOf(first, 5, 9), SourceOf(second, 30, 9)};
    auto table = *backend->PackMatrix(sources);
    EXPECT_EQ(table->rows(), 35);
    EXPECT_EQ(table->cols(), 9);
    auto out = *backend->Allocate(3, 9);
    const std::vector<int32_t> ids = {4, 5, 34};
    ASSERT_TRUE(backend->Embed(*table, ids, *out).ok());
    const std::vector<float> found = Values(*out, 3);
    for (int64_t k = 0; k < 9; ++k) {
      const auto stored = [&](float x) { return c.precision == Precision::kF32 ? x : FromBf16(ToBf16(x)); };
      EXPECT_EQ(found[k], stored(first[4 * 9 + k]));
      EXPECT_EQ(found[9 + k], stored(second[k]));
      EXPECT_EQ(found[18 + k], stored(second[29 * 9 + k]));
    }
  }
}

}  // namespace
}  // namespace swiftcache::engine::backend::cpu
