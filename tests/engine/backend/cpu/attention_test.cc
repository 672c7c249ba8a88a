// SPDX-License-Identifier: Apache-2.0
#include "engine/backend/cpu/attention.h"

#include <algorithm>
#include <limits>
#include <list>

#include "tests/engine/backend/cpu/backend_test_util.h"

namespace swiftcache::engine::backend::cpu {
namespace {

struct Arrangement {
  AttentionShape shape;
  KvDtype dtype = KvDtype::kBf16;
  int64_t block_tokens = 16;
  Isa isa = kHighestIsa;
  int threads = 2;
  bool norms = false;
  Precision precision = Precision::kBf16;

  int64_t width() const { return (shape.num_heads + 2 * shape.num_kv_heads) * shape.head_dim; }
  int64_t out_width() const { return shape.num_heads * shape.head_dim; }
};

std::vector<float> Frequencies(int64_t head_dim) {
  std::vector<float> out;
  for (int64_t i = 0; i < head_dim / 2; ++i) out.push_back(std::pow(10000.0f, -2.0f * i / head_dim));
  return out;
}

// Attention of a whole sequence in double precision. K and V are rounded as the KV blocks would.
struct Oracle {
  const Arrangement& setup;
  std::vector<float> qkv, q_norm, k_norm;
  static constexpr double kEps = 1e-6;

  // Head h (q heads, then k heads) of a row: normed and rotated.
  std::vector<double> Rotated(int64_t row, int64_t h) const {
    const int64_t dim = setup.shape.head_dim, half = dim / 2;
    const float* in = qkv.data() + row * setup.width() + h * dim;
    std::vector<double> x(in, in + dim), out(dim);
    if (setup.norms) {
      double squares = 0;
      for (const double v : x) squares += v * v;
      const std::vector<float>& weight = h < setup.shape.num_heads ? q_norm : k_norm;
      for (int64_t d = 0; d < dim; ++d) x[d] *= weight[d] / std::sqrt(squares / dim + kEps);
    }
    const std::vector<float> frequencies = Frequencies(dim);
    for (int64_t i = 0; i < half; ++i) {
      const double angle = static_cast<float>(row) * frequencies[i];
      out[i] = x[i] * std::cos(angle) - x[half + i] * std::sin(angle);
      out[half + i] = x[half + i] * std::cos(angle) + x[i] * std::sin(angle);
    }
    return out;
  }
  // What the KV blocks hold of a head.
  std::vector<double> Stored(std::vector<double> head) const {
    double largest = 0;
    for (const double x : head) largest = std::max(largest, std::abs(x));
    const double scale = largest / 127;
    for (double& x : head) {
      if (setup.dtype == KvDtype::kBf16) x = RoundToBf16(x);
      if (setup.dtype == KvDtype::kInt8) x = std::nearbyint(x / scale) * scale;
    }
    return head;
  }
  std::vector<double> StoredV(int64_t row, int64_t kv_head) const {
    const auto [heads, kv_heads, dim] = setup.shape;
    const auto in = qkv.begin() + row * setup.width() + (heads + kv_heads + kv_head) * dim;
    return Stored({in, in + dim});
  }

  std::vector<double> Attend(int64_t row) const {
    const auto [heads, kv_heads, dim] = setup.shape;
    std::vector<double> out;
    for (int64_t h = 0; h < heads; ++h) {
      const int64_t kv = h / (heads / kv_heads);
      const std::vector<double> q = Rotated(row, h);
      std::vector<double> weights;
      double sum = 0;
      for (int64_t t = 0; t <= row; ++t) {
        const std::vector<double> k = Stored(Rotated(t, heads + kv));
        double score = 0;
        for (int64_t d = 0; d < dim; ++d) score += q[d] * k[d];
        weights.push_back(std::exp(score / std::sqrt(dim)));
        sum += weights.back();
      }
      std::vector<double> values(dim);
      for (int64_t t = 0; t <= row; ++t) {
        const std::vector<double> v = StoredV(t, kv);
        for (int64_t d = 0; d < dim; ++d) values[d] += weights[t] * v[d];
      }
      for (const double value : values) out.push_back(value / sum);
    }
    return out;
  }
};

Oracle MakeOracle(const Arrangement& setup, int64_t tokens, uint32_t seed) {
  return {setup, RandomVector(tokens * setup.width(), seed), RandomVector(setup.shape.head_dim, seed + 100),
          RandomVector(setup.shape.head_dim, seed + 200)};
}

// Memory of one sequence's blocks, filled with NaN: what was not written must not be read.
struct Blocks {
  Blocks(const KvLayout& kv, int64_t tokens) {
    const int64_t count = (tokens + kv.block_tokens - 1) / kv.block_tokens;
    memory.resize(count * kv.block_bytes(), std::byte{0xff});
    const DeviceAddress base = AddressSpace().Of(memory.data());
    for (int64_t b = 0; b < count; ++b) addresses.push_back(base + (count - 1 - b) * kv.block_bytes());
  }
  std::vector<std::byte> memory;
  std::vector<DeviceAddress> addresses;
};

constexpr int64_t kLayer = 1, kLayers = 2;

class Engine {
 public:
  Engine(const Arrangement& setup, int64_t max_rows) : setup_(setup) {
    kv_ = {kLayers, setup.shape.num_kv_heads, setup.shape.head_dim, setup.block_tokens, setup.dtype};
    backend_ = MakeBackend({.threads = setup.threads,
                            .precision = setup.precision,
                            .max_isa = setup.isa,
                            .attention = setup.shape,
                            .kv = kv_,
                            .inverse_frequencies = Frequencies(setup.shape.head_dim),
                            .max_rows = max_rows});
  }
  const KvLayout& kv() const { return kv_; }

  // One step over `sequences`; rows are taken from the oracles at their positions. Returns the rows' outputs.
  std::vector<float> Step(const std::vector<StepSequence>& sequences, const std::vector<const Oracle*>& oracles) {
    std::vector<float> rows;
    for (size_t i = 0; i < sequences.size(); ++i) {
      const auto from = oracles[i]->qkv.begin() + sequences[i].context_tokens * setup_.width();
      rows.insert(rows.end(), from, from + sequences[i].num_rows * setup_.width());
    }
    auto qkv = MakeBuffer(*backend_, rows, setup_.width());
    auto out = *backend_->Allocate(qkv->rows(), setup_.out_width());
    auto q_norm = UploadVector(*backend_, oracles[0]->q_norm), k_norm = UploadVector(*backend_, oracles[0]->k_norm);
    EXPECT_TRUE(backend_->BeginStep(sequences, {}).ok());
    EXPECT_TRUE(backend_
                    ->RopeAndStoreKv({.layer = kLayer,
                                      .qkv = qkv.get(),
                                      .q_norm = setup_.norms ? q_norm.get() : nullptr,
                                      .k_norm = setup_.norms ? k_norm.get() : nullptr,
                                      .eps = 1e-6f})
                    .ok());
    EXPECT_TRUE(backend_->Attention(kLayer, *qkv, *out).ok());
    return Values(*out, qkv->rows());
  }

  // A whole sequence in chunks.
  std::vector<float> Prefill(const Oracle& oracle, int64_t tokens, int64_t chunk) {
    Blocks blocks(kv_, tokens);
    std::vector<float> out;
    for (int64_t at = 0; at < tokens; at += chunk) {
      const std::vector<float> part = Step({{std::min(chunk, tokens - at), at, blocks.addresses}}, {&oracle});
      out.insert(out.end(), part.begin(), part.end());
    }
    return out;
  }

 private:
  const Arrangement& setup_;
  KvLayout kv_;
  std::unique_ptr<Backend> backend_;
};

std::vector<Arrangement> AllArrangements() {
  std::vector<Arrangement> setups;
  for (const Isa isa : kAllIsas) {
    if (BestIsa(isa) != isa) continue;
    for (const KvDtype dtype : {KvDtype::kBf16, KvDtype::kF32, KvDtype::kInt8}) {
      setups.push_back({{9, 3, 64}, dtype, 16, isa});
      setups.push_back({{6, 2, 24}, dtype, 1, isa});
      setups.push_back({{32, 1, 16}, dtype, 16, isa});
      setups.push_back({{4, 4, 10}, dtype, 7, isa, 3});
      setups.push_back({{4, 1, 16}, dtype, 256, isa, 1, true});
      setups.push_back({{3, 1, 6}, dtype, 5, isa, 2, true});
      setups.push_back({{3, 1, 40}, dtype, 5, isa, 2, true, Precision::kF32});
    }
  }
  return setups;
}

TEST(AttentionTest, EveryIsaDtypeAndHeadShapeMatchesTheOracle) {
  constexpr int64_t kTokens = 150;  // over two tile borders
  int compared = 0;
  for (const Arrangement& setup : AllArrangements()) {
    const Oracle oracle = MakeOracle(setup, kTokens, 7);
    const std::vector<float> found = Engine(setup, kTokens).Prefill(oracle, kTokens, kTokens);
    // A key one float away may be stored as the neighbouring bf16; queries and probabilities may be rounded to bf16.
    const bool bf16_products = MultipliesBf16(setup.isa) && setup.precision == Precision::kBf16;
    const double tolerance = setup.dtype == KvDtype::kF32 ? 1e-4 : bf16_products ? 3e-2 : 1e-2;
    for (const int64_t row : {0, 1, 62, 63, 64, 65, 127, 128, 149}) {
      const std::vector<double> wanted = oracle.Attend(row);
      for (int64_t i = 0; i < setup.out_width(); ++i, ++compared) {
        ASSERT_NEAR(found[row * setup.out_width() + i], wanted[i], tolerance)
            << IsaName(setup.isa) << " KV " << NameOf(setup.dtype) << " head_dim " << setup.shape.head_dim << " row "
            << row << " at " << i;
      }
    }
  }
  EXPECT_GT(compared, 10000);
}

TEST(AttentionTest, ChunksBlocksAndThreadsChangeNoBit) {
  constexpr int64_t kTokens = 150;
  for (const Arrangement& setup : AllArrangements()) {
    const Oracle oracle = MakeOracle(setup, kTokens, 8);
    const std::vector<float> wanted = Engine(setup, kTokens).Prefill(oracle, kTokens, kTokens);
    for (const int64_t chunk : {1, 7, 64}) {
      Arrangement other = setup;
      other.block_tokens = chunk == 7 ? 3 : 2 * setup.block_tokens;
      other.threads = 1 + chunk % 3;
      EXPECT_TRUE(SameBits(Engine(other, kTokens).Prefill(oracle, kTokens, chunk), wanted))
          << IsaName(setup.isa) << " head_dim " << setup.shape.head_dim << " chunk " << chunk;
    }
  }
}

// A row that is computed alone has its segments computed by all threads, which whole prompts and many neighbours do not.
TEST(AttentionTest, SegmentsComputedApartChangeNoBit) {
  constexpr int64_t kTokens = 1100, kNeighbours = 24;  // two whole segments and a part
  for (Arrangement setup : AllArrangements()) {
    if (setup.shape.num_heads != 9 && setup.shape.num_heads != 6) continue;
    const Oracle oracle = MakeOracle(setup, kTokens, 12);
    setup.threads = 3;
    Engine engine(setup, kTokens);
    Blocks blocks(engine.kv(), kTokens);
    const std::vector<float> whole = engine.Step({{kTokens, 0, blocks.addresses}}, {&oracle});
    const auto wanted = std::span(whole).last(setup.out_width());
    const StepSequence last = {1, kTokens - 1, blocks.addresses};
    for (int turn = 0; turn < 20; ++turn) {
      EXPECT_TRUE(SameBits(engine.Step({last}, {&oracle}), wanted)) << IsaName(setup.isa) << " turn " << turn;
    }
    std::list<Blocks> of_others;
    std::vector<StepSequence> sequences = {last};
    for (int64_t i = 0; i < kNeighbours; ++i) {
      sequences.push_back({1, 0, of_others.emplace_back(engine.kv(), 1).addresses});
    }
    const std::vector<float> crowd = engine.Step(sequences, std::vector(kNeighbours + 1, &oracle));
    EXPECT_TRUE(SameBits(std::span(crowd).first(setup.out_width()), wanted)) << IsaName(setup.isa) << " in a crowd";
    const bool bf16_products = MultipliesBf16(setup.isa) && setup.precision == Precision::kBf16;
    const double tolerance = setup.dtype == KvDtype::kF32 ? 1e-4 : bf16_products ? 3e-2 : 1e-2;
    const std::vector<double> exact = oracle.Attend(kTokens - 1);
    for (int64_t i = 0; i < setup.out_width(); ++i) ASSERT_NEAR(wanted[i], exact[i], tolerance) << IsaName(setup.isa);
  }
}

TEST(AttentionTest, NeighboursInTheBatchChangeNoBit) {
  constexpr int64_t kTokens = 100;
  for (const Arrangement& setup : AllArrangements()) {
    const Oracle a = MakeOracle(setup, kTokens, 9), b = MakeOracle(setup, kTokens, 10);
    Oracle b_with_norms_of_a = b;
    b_with_norms_of_a.q_norm = a.q_norm;
    b_with_norms_of_a.k_norm = a.k_norm;
    Engine engine(setup, 2 * kTokens);
    const std::vector<float> alone = engine.Prefill(a, kTokens, kTokens);
    Blocks of_a(engine.kv(), kTokens), of_b(engine.kv(), kTokens);
    engine.Step({{kTokens - 1, 0, of_a.addresses}, {40, 0, of_b.addresses}}, {&a, &b_with_norms_of_a});
    const std::vector<float> mixed =
        engine.Step({{60, 40, of_b.addresses}, {1, kTokens - 1, of_a.addresses}}, {&a, &a});
    EXPECT_TRUE(SameBits(std::span(mixed).last(setup.out_width()), std::span(alone).last(setup.out_width())))
        << IsaName(setup.isa) << " head_dim " << setup.shape.head_dim;
  }
}

// Each element is the nearest whole number of times its head's scale, from heads of zeroes to the largest numbers.
TEST(AttentionTest, Int8HoldsTheNearestOfEachElementAndTheScale) {
  for (const Isa isa : kAllIsas) {
    if (BestIsa(isa) != isa) continue;
    const Kernels kernels = KernelsFor(isa);
    for (const int64_t n : {2, 6, 16, 40, 64}) {
      for (const float largest : {0.0f, 1e-38f, 1e-30f, 1.0f, 300.0f, 1e30f}) {
        std::vector<float> x = RandomVector(n, 3);
        const float most =
            std::abs(*std::max_element(x.begin(), x.end(), [](float a, float b) { return std::abs(a) < std::abs(b); }));
        for (float& value : x) value *= largest / most;
        std::vector<int8_t> stored(n + 1, 77);
        const float scale = kernels.quantize(x.data(), n, stored.data());
        EXPECT_FLOAT_EQ(scale, largest / 127);
        EXPECT_EQ(stored[n], 77) << "beyond the head";
        for (int64_t i = 0; i < n; ++i) {
          EXPECT_GE(stored[i], -127);
          ASSERT_LE(std::abs(stored[i] * scale - x[i]), std::max(scale * 0.50001f, 1e-35f))
              << IsaName(isa) << " n " << n << " at " << i;
        }
      }
    }
  }
}

TEST(AttentionTest, Int8HasAScaleThatIsNotFiniteWhereverAnElementIsNot) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const Isa isa : kAllIsas) {
    if (BestIsa(isa) != isa) continue;
    const Kernels kernels = KernelsFor(isa);
    for (const int64_t n : {2, 6, 16, 42, 64}) {
      for (int64_t at = 0; at < n; ++at) {  // in each vector, and behind the last
        for (const float value : {std::nanf(""), -std::nanf(""), infinity, -infinity}) {
          std::vector<float> x = RandomVector(n, 3);
          x[at] = value;
          std::vector<int8_t> stored(n);
          EXPECT_FALSE(std::isfinite(kernels.quantize(x.data(), n, stored.data())))
              << IsaName(isa) << " n " << n << " at " << at << ": " << value;
        }
      }
    }
  }
}

TEST(AttentionTest, AValueThatIsNoNumberIsSeenInTheRowsOutput) {
  constexpr int64_t kTokens = 3, kDim = 42;
  for (const Isa isa : kAllIsas) {
    if (BestIsa(isa) != isa) continue;
    for (const KvDtype dtype : {KvDtype::kBf16, KvDtype::kF32, KvDtype::kInt8}) {
      const Arrangement setup{{2, 1, kDim}, dtype, 16, isa};
      for (int64_t d = 0; d < kDim; ++d) {
        Oracle oracle = MakeOracle(setup, kTokens, 13);
        oracle.qkv[kTokens * setup.width() - kDim + d] = std::nanf("");  // of the last token's V
        const std::vector<float> found = Engine(setup, kTokens).Prefill(oracle, kTokens, kTokens);
        for (const int64_t head : {0, 1}) {
          EXPECT_TRUE(std::isnan(found[(kTokens - 1) * setup.out_width() + head * kDim + d]))
              << IsaName(isa) << " KV " << NameOf(dtype) << " at " << d;
        }
      }
    }
  }
}

// What a step of eight tokens leaves in blocks of four, f32.
struct EightTokens {
  explicit EightTokens(const AttentionShape& shape) : setup{shape, KvDtype::kF32, 4} {
    engine.Step({{8, 0, blocks.addresses}}, {&oracle});
  }
  const Arrangement setup;
  Engine engine{setup, 8};
  const Oracle oracle = MakeOracle(setup, 8, 11);
  Blocks blocks{engine.kv(), 8};
};

TEST(AttentionTest, OtherLayersSlicesAreNotTouched) {
  const EightTokens stored({2, 1, 8});
  const Engine& engine = stored.engine;
  for (const DeviceAddress address : stored.blocks.addresses) {
    const std::byte* block = AddressSpace().Host(address);
    EXPECT_TRUE(
        std::all_of(block, block + engine.kv().slice_bytes(), [](std::byte b) { return b == std::byte{0xff}; }));
  }
}

TEST(AttentionTest, AHeadsTokensOfABlockLieSideBySide) {
  const EightTokens stored({4, 2, 8});
  for (int64_t t = 0; t < 8; ++t) {
    for (int64_t head = 0; head < 2; ++head) {
      const std::byte* slice =
          AddressSpace().Host(stored.blocks.addresses[t / 4]) + kLayer * stored.engine.kv().slice_bytes();
      const auto* v = reinterpret_cast<const float*>(slice) + 2 * 4 * 8 + (head * 4 + t % 4) * 8;  // behind all of K
      EXPECT_EQ(std::vector<double>(v, v + 8), stored.oracle.StoredV(t, head)) << "token " << t << " head " << head;
    }
  }
}

}  // namespace
}  // namespace swiftcache::engine::backend::cpu
