// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <limits>
#include <numeric>
#include <string>
#include <utility>

#include "common/base/units.h"
#include "engine/backend/cpu/int8_row.h"
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
  int int8_rows = 0;  // that a row becomes: none, one, or one and another of what it leaves

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
  // As int8_row.h defines it.
  static std::vector<double> ThroughInt8(std::vector<double> x) {
    for (size_t group = 0; group < x.size(); group += kInt8Inputs) {
      float largest = 0;
      for (int i = 0; i < kInt8Inputs; ++i) largest = std::max(largest, std::abs(static_cast<float>(x[group + i])));
      const float factor = 127.0f / largest, scale = largest / 127.0f;
      for (int i = 0; i < kInt8Inputs && largest > 0; ++i) {
        x[group + i] = double{scale} * std::nearbyint(static_cast<float>(x[group + i]) * factor);
      }
    }
    return x;
  }
  std::vector<double> Row(int64_t row, int64_t inputs) const {
    const std::vector<double> x = Prepared(row, inputs);
    if (int8_rows == 0) return x;
    std::vector<double> codes = ThroughInt8(x);
    if (int8_rows == 1) return codes;
    std::vector<double> rest(x.size());
    for (size_t k = 0; k < x.size(); ++k) rest[k] = static_cast<float>(static_cast<float>(x[k]) - codes[k]);
    rest = ThroughInt8(rest);
    for (size_t k = 0; k < x.size(); ++k) codes[k] += rest[k];
    return codes;
  }
  std::vector<double> Product(const Shape& s) const {
    std::vector<double> out;
    for (int64_t m = 0; m < s.rows; ++m) {
      const std::vector<double> x = Row(m, s.inputs);
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
  Activations activations = Activations::kBf16;

  bool bf16_rows() const {
    return precision == Precision::kBf16 && MultipliesBf16(isa) && activations != Activations::kF32;
  }
  // Of kAuto and Exactness::kHigh.
  bool twice(WeightFormat format) const {
    const bool vnni = isa == Isa::kAvxVnni || isa == Isa::kAvx512Vnni;
    return activations == Activations::kAuto && (vnni || format != WeightFormat::kQ8_0);
  }
  Exactness exactness() const { return activations == Activations::kAuto ? Exactness::kHigh : Exactness::kUsual; }
  std::string name() const {
    return std::string(IsaName(isa)) + (activations == Activations::kInt8   ? ", int8"
                                        : activations == Activations::kAuto ? ", int8 twice"
                                                                            : "");
  }
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

// Of quantised weights.
std::vector<Case> AllQuantizedCases() {
  std::vector<Case> cases = AllCases();
  for (const Case& c : AllCases()) {
    if (c.precision != Precision::kBf16) continue;
    cases.push_back({c.isa, c.precision, 2, Activations::kF32});
    if (c.isa >= Isa::kAvx2) cases.push_back({c.isa, c.precision, 2, Activations::kInt8});
    if (c.isa >= Isa::kAvx2 && !MultipliesBf16(c.isa)) cases.push_back({c.isa, c.precision, 2, Activations::kAuto});
  }
  return cases;
}

Oracle MakeOracle(const Case& c, const Shape& s, Prologue prologue, bool bias, bool add) {
  Oracle o{.prologue = prologue, .bf16_weights = c.precision == Precision::kBf16, .bf16_rows = c.bf16_rows()};
  o.in = RandomVector(s.rows * s.inputs * (prologue == Prologue::kSiluMul ? 2 : 1), 1);
  o.norm = RandomVector(s.inputs, 2);
  o.weight = RandomVector(s.inputs * s.outputs, 3, 1.0f / std::sqrt(static_cast<float>(s.inputs)));
  if (bias) o.bias = RandomVector(s.outputs, 4);
  if (add) o.residual = RandomVector(s.rows * s.outputs, 5);
  return o;
}

std::vector<float> RunLinear(const Case& c, const Shape& s, const Oracle& o) {
  auto backend = MakeBackend({.threads = c.threads,
                              .precision = c.precision,
                              .activations = c.activations,
                              .max_isa = c.isa,
                              .max_rows = std::max<int64_t>(s.rows, 8)});
  const WeightSource source = o.quantized ? o.quantized->source() : SourceOf(o.weight, s.outputs, s.inputs);
  auto weight = *backend->PackMatrix({&source, 1}, c.exactness());
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
  const Shape all{512, 290, 97};  // of bf16 pairs three stretches of inputs
  for (Case c : AllCases()) {
    const Oracle o = MakeOracle(c, all, Prologue::kRmsNorm, true, true);
    c.threads = 1;
    const std::vector<float> wanted = RunLinear(c, all, o);
    for (const int64_t rows : {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 16, 33, 64, 512}) {
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

void Quantize(const Case& c, std::shared_ptr<QuantizedWeights> weights, Oracle& o) {
  o.bf16_weights = false;
  o.weight = weights->Values();
  o.int8_rows = c.activations == Activations::kInt8 ? 1 : c.twice(weights->format) ? 2 : 0;
  o.bf16_rows = o.bf16_rows && o.int8_rows == 0;
  o.quantized = std::move(weights);
}

// Of a stored format whose weights stay as they are: nothing but the rows is rounded.
Oracle MakeQuantizedOracle(const Case& c, const Shape& s, WeightFormat format, Prologue prologue, bool extras) {
  Oracle o = MakeOracle(c, s, prologue, extras, extras);
  Quantize(c, std::make_shared<QuantizedWeights>(format, s.outputs, s.inputs, 6), o);
  return o;
}

TEST(LinearTest, WeightsThatStayQuantisedMatchTheOracle) {
  int compared = 0;
  for (const Case& c : AllQuantizedCases()) {
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
          // What the first of two int8 rows has at the other side the second brings back.
          const bool rounded = o.bf16_rows || o.int8_rows == 1;
          const double tolerance = prologue == Prologue::kNone ? 1e-4 : rounded ? 5e-2 : o.int8_rows == 2 ? 5e-4 : 1e-4;
          ASSERT_EQ(found.size(), wanted.size());
          for (size_t i = 0; i < wanted.size(); ++i, ++compared) {
            ASSERT_NEAR(found[i], wanted[i], tolerance * (1 + std::abs(wanted[i])))
                << NameOf(format) << " " << c.name() << " rows " << s.rows << " inputs " << s.inputs << " outputs "
                << s.outputs << " at " << i;
          }
        }
      }
    }
  }
  EXPECT_GT(compared, 100000);
}

TEST(LinearTest, ARowsBitsOverQuantisedWeightsDoNotDependOnRowCountOrThreads) {
  for (Case c : AllQuantizedCases()) {
    for (const WeightFormat format : kBlockFormats) {
      const Shape all{256, CeilDiv(160, BlockOf(format).elements) * BlockOf(format).elements, 97};
      const Oracle o = MakeQuantizedOracle(c, all, format, Prologue::kRmsNorm, true);
      c.threads = 1;
      const std::vector<float> wanted = RunLinear(c, all, o);
      for (const int64_t rows : {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 33, 60, 64, 256}) {
        c.threads = 1 + static_cast<int>(rows % 3);
        Oracle part = o;
        part.in.assign(o.in.end() - rows * all.inputs, o.in.end());
        part.residual.assign(o.residual.end() - rows * all.outputs, o.residual.end());
        const std::vector<float> found = RunLinear(c, {rows, all.inputs, all.outputs}, part);
        EXPECT_TRUE(SameBits(found, std::span(wanted).last(rows * all.outputs)))
            << NameOf(format) << " " << c.name() << " rows " << rows;
      }
    }
  }
}

TEST(LinearTest, IntegerProductsHaveTheSameBitsOnEveryIsa) {
  const Shape s{11, 512, 96};
  for (const WeightFormat format : kBlockFormats) {
    std::vector<float> first[2];  // of one int8 row, and of two
    for (const Case& c : AllQuantizedCases()) {
      const Oracle o = MakeQuantizedOracle(c, s, format, Prologue::kNone, true);
      if (o.int8_rows == 0) continue;
      const std::vector<float> found = RunLinear(c, s, o);
      std::vector<float>& wanted = first[o.int8_rows - 1];
      if (wanted.empty()) wanted = found;
      EXPECT_TRUE(SameBits(found, wanted)) << NameOf(format) << " " << c.name();
    }
  }
}

TEST(LinearTest, ASecondInt8RowBringsMostOfWhatTheFirstLeaves) {
  const Shape s{8, 1024, 64};
  for (const WeightFormat format : kBlockFormats) {
    double squares[3] = {};  // of errors, by the number of int8 rows; the largest of all cases
    for (const Case& c : AllQuantizedCases()) {
      Oracle o = MakeQuantizedOracle(c, s, format, Prologue::kNone, false);
      const int int8_rows = std::exchange(o.int8_rows, 0);
      if (o.bf16_rows) continue;
      const std::vector<double> exact = o.Product(s);
      const std::vector<float> found = RunLinear(c, s, o);
      double of_case = 0;
      for (size_t i = 0; i < exact.size(); ++i) of_case += std::pow(found[i] - exact[i], 2);
      EXPECT_GT(of_case, 0) << NameOf(format) << " " << c.name();
      squares[int8_rows] = std::max(squares[int8_rows], of_case);
    }
    EXPECT_LE(std::sqrt(squares[2]), std::sqrt(squares[1]) / 100) << NameOf(format);
  }
}

TEST(LinearTest, TheLargestCodesOverflowNoInteger) {
  const Shape s{2, 512, 32};
  for (const Case& c : AllQuantizedCases()) {
    for (const WeightFormat format : kBlockFormats) {
      for (const uint8_t byte : {0x00, 0x7f, 0x80, 0xff}) {
        const auto weights = std::make_shared<QuantizedWeights>(format, s.outputs, s.inputs, 6);
        const std::vector<int64_t> halves = QuantizedWeights::HalvesOf(format);
        for (size_t i = 0; i < weights->bytes.size(); ++i) {
          const int64_t at = static_cast<int64_t>(i) % BlockOf(format).bytes;
          bool scale = false;
          for (const int64_t half : halves) scale |= at == half || at == half + 1;
          if (!scale) weights->bytes[i] = byte;
        }
        Oracle o = MakeOracle(c, s, Prologue::kNone, false, false);
        for (int64_t i = 0; i < 2 * s.inputs; ++i) o.in[i] = i < s.inputs ? 1.0f : -1.0f;
        Quantize(c, weights, o);
        const std::vector<double> wanted = o.Product(s);
        const std::vector<float> found = RunLinear(c, s, o);
        for (size_t i = 0; i < wanted.size(); ++i) {
          ASSERT_NEAR(found[i], wanted[i], 1e-3 * (1 + std::abs(wanted[i])))
              << NameOf(format) << " " << c.name() << " byte " << int{byte} << " at " << i;
        }
      }
    }
  }
}

TEST(LinearTest, WhatIsNotFiniteStaysSoAndTinyInputsAreNoSuch) {
  const Shape s{5, 64, 32};
  const float infinity = std::numeric_limits<float>::infinity();
  for (const Case& c : AllQuantizedCases()) {
    for (const WeightFormat format : {WeightFormat::kQ8_0, WeightFormat::kQ4_0, WeightFormat::kQ4_1}) {
      Oracle o = MakeQuantizedOracle(c, s, format, Prologue::kNone, false);
      o.in[0 * s.inputs + 40] = std::nanf("");
      o.in[1 * s.inputs + 7] = infinity;
      o.in[2 * s.inputs + 63] = -infinity;
      std::fill_n(o.in.begin() + 3 * s.inputs, s.inputs, 0.0f);
      std::fill_n(o.in.begin() + 4 * s.inputs, s.inputs, 1e-42f);
      const std::vector<float> found = RunLinear(c, s, o);
      int not_finite = 0;
      for (int64_t i = 0; i < 3 * s.outputs; ++i) not_finite += std::isfinite(found[i]) ? 0 : 1;
      EXPECT_GT(not_finite, 2 * s.outputs) << NameOf(format) << " " << c.name();  // infinity times zero may be left out
      for (int64_t i = 3 * s.outputs; i < 5 * s.outputs; ++i) {
        EXPECT_LT(std::abs(found[i]), 1e-30f) << NameOf(format) << " " << c.name();
      }
    }
  }
}

TEST(LinearTest, InAStackOfSeveralFormatsEachHasTheBitsThatItHasAlone) {
  constexpr int64_t kInputs = 512, kFirst = 64, kSecond = 33;
  const QuantizedWeights first(WeightFormat::kQ4_K, kFirst, kInputs, 1),
      second(WeightFormat::kQ6_K, kSecond, kInputs, 2);
  const std::vector<float> norm_values = RandomVector(kInputs, 3), bias_values = RandomVector(kFirst + kSecond, 4);
  for (const Case& c : AllQuantizedCases()) {
    for (const int64_t rows : {1, 3, 5, 40}) {
      auto backend = MakeBackend(
          {.threads = 2, .precision = c.precision, .activations = c.activations, .max_isa = c.isa, .max_rows = 64});
      auto in = MakeBuffer(*backend, RandomVector(rows * kInputs, 5), kInputs);
      auto norm = UploadVector(*backend, norm_values);
      const auto product = [&](std::span<const WeightSource> stacked, int64_t begin, int64_t outputs) {
        auto weight = *backend->PackMatrix(stacked, c.exactness());
        auto bias = UploadVector(*backend, {bias_values.begin() + begin, bias_values.begin() + begin + outputs});
        auto out = MakeBuffer(*backend, std::vector<float>(rows * outputs, 0.25f), outputs);
        EXPECT_TRUE(backend
                        ->Linear({.in = in.get(),
                                  .rows = rows,
                                  .prologue = Prologue::kRmsNorm,
                                  .norm = norm.get(),
                                  .eps = 1e-5f,
                                  .weight = weight.get(),
                                  .bias = bias.get(),
                                  .add = true,
                                  .out = out.get()})
                        .ok());
        return Values(*out, rows);
      };
      const WeightSource sources[] = {first.source(), second.source()};
      const std::vector<float> all = product(sources, 0, kFirst + kSecond);
      const std::vector<float> of_first = product({sources, 1}, 0, kFirst);
      const std::vector<float> of_second = product({sources + 1, 1}, kFirst, kSecond);
      for (int64_t r = 0; r < rows; ++r) {
        const std::span<const float> row = std::span(all).subspan(r * (kFirst + kSecond), kFirst + kSecond);
        EXPECT_TRUE(SameBits(row.first(kFirst), std::span(of_first).subspan(r * kFirst, kFirst)))
            << c.name() << " rows " << rows;
        EXPECT_TRUE(SameBits(row.last(kSecond), std::span(of_second).subspan(r * kSecond, kSecond)))
            << c.name() << " rows " << rows;
      }
    }
  }
}

TEST(LinearTest, StackedSourcesAreOneMatrixAndEmbedReadsItsRows) {
  for (const Case& c : AllCases()) {
    const std::vector<float> first = RandomVector(5 * 9, 1), second = RandomVector(30 * 9, 2);
    auto backend = MakeBackend({.threads = 2, .precision = c.precision, .max_isa = c.isa});
    const WeightSource sources[] = {SourceOf(first, 5, 9), SourceOf(second, 30, 9)};
    auto table = *backend->PackMatrix(sources, Exactness::kUsual);
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
