// SPDX-License-Identifier: Apache-2.0
#include "engine/backend/cpu/sampler.h"

#include <glog/logging.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/base/units.h"
#include "engine/sample/random.h"

namespace swiftcache::engine::backend::cpu {
namespace {

constexpr float kImpossible = -std::numeric_limits<float>::infinity();
constexpr float kLargest = std::numeric_limits<float>::max();

float Clean(float logit) { return std::min(logit, kLargest); }

// The lowest logit that min-p leaves, as the smallest float that is not below it.
float MinPFloor(float max, const sample::SamplingParams& params) {
  const double exact = max + params.temperature * std::log(static_cast<double>(params.min_p));
  if (!(exact > -kLargest)) return -kLargest;
  const auto rounded = static_cast<float>(exact);
  return rounded < exact ? std::nextafter(rounded, kLargest) : rounded;
}

// The least mass that is a share `top_p` of all.
uint64_t ShareOf(uint64_t mass, float top_p) {
  return static_cast<uint64_t>(std::ceil(static_cast<double>(top_p) * static_cast<double>(mass)));
}

// The draw: the token is the first whose cumulative mass exceeds this.
uint64_t TargetOf(uint64_t mass, double uniform) {
  return std::min(static_cast<uint64_t>(uniform * static_cast<double>(mass)), mass - 1);
}

}  // namespace

Sampler::Sampler(const SamplingKernels& kernels, ThreadPool& pool) : kernels_(kernels), pool_(pool) {
  for (int i = 0; i < pool.threads(); ++i) workers_.push_back(Worker{.ranking = Ranking(kernels)});
}

int64_t Sampler::parts() const { return CeilDiv(vocab_, kPartEntries); }
int64_t Sampler::blocks() const { return parts() * kBlocksPerPart; }

absl::Status Sampler::Sample(const HostBuffer& logits, std::span<const SampleRow> rows, std::span<Sampled> out) {
  CHECK_EQ(rows.size(), out.size());
  vocab_ = logits.cols();
  RETURN_IF_ERROR(Reserve());
  SetRows(logits, rows, out);
  pool_.ParallelFor(rows_.size() * parts(), [&](int64_t item, int worker) {
    FindMaxima(rows_[item / parts()], item % parts(), workers_[worker]);
  });
  summed_.clear();
  for (Row& row : rows_) {
    SetScale(row);
    if (row.best > kImpossible && (row.drawn() || row.params().logprobs)) summed_.push_back(&row);
  }
  pool_.ParallelFor(summed_.size() * parts(), [&](int64_t item, int worker) {
    SumWeights(*summed_[item / parts()], item % parts(), workers_[worker]);
  });
  pool_.ParallelFor(rows_.size(), [&](int64_t row, int worker) { Choose(rows_[row], workers_[worker]); });
  return absl::OkStatus();
}

absl::Status Sampler::Reserve() {
  if (vocab_ <= reserved_) return absl::OkStatus();
  for (Worker& worker : workers_) {
    ASSIGN_OR_RETURN(worker.part, HostMemory::Allocate(kPartEntries * int64_t{sizeof(float)}));
    ASSIGN_OR_RETURN(worker.weights, HostMemory::Allocate(kPartEntries * int64_t{sizeof(uint64_t)}));
    RETURN_IF_ERROR(worker.ranking.Reserve(vocab_));
  }
  reserved_ = vocab_;
  return absl::OkStatus();
}

void Sampler::SetRows(const HostBuffer& logits, std::span<const SampleRow> rows, std::span<Sampled> out) {
  maxima_.resize(rows.size() * blocks());
  raw_maxima_.resize(rows.size() * blocks());
  masses_.resize(rows.size() * parts());
  exps_.resize(rows.size() * parts());
  rows_.clear();
  for (size_t r = 0; r < rows.size(); ++r) {
    CHECK_GE(rows[r].logits_row, 0);
    CHECK_LT(rows[r].logits_row, logits.rows());
    Row& row = rows_.emplace_back();
    row.wanted = &rows[r];
    row.logits = logits.row(rows[r].logits_row);
    row.out = &out[r];
    row.maxima = maxima_.data() + r * blocks();
    row.raw_maxima = row.penalised() ? raw_maxima_.data() + r * blocks() : row.maxima;
    row.masses = masses_.data() + r * parts();
    row.exps = exps_.data() + r * parts();
  }
}

// The row itself where it is whole steps without a token seen, else a copy.
Sampler::Part Sampler::ViewPart(const Row& row, int64_t part, Logits which, Worker& worker) const {
  const int64_t begin = part * kPartEntries, n = std::min(kPartEntries, vocab_ - begin);
  const int64_t padded = CeilDiv(n, kSampleStep) * kSampleStep;
  std::span<const sample::SeenToken> seen;
  if (which == Logits::kPenalised) {
    const auto below = [](const sample::SeenToken& token, int64_t id) { return token.id < id; };
    const auto first = std::lower_bound(row.wanted->seen.begin(), row.wanted->seen.end(), begin, below);
    seen = {first, std::lower_bound(first, row.wanted->seen.end(), begin + n, below)};
  }
  if (seen.empty() && padded == n) return {begin, padded, row.logits + begin};
  float* copy = worker.part.as<float>();
  std::copy_n(row.logits + begin, n, copy);
  std::fill(copy + n, copy + padded, kImpossible);
  for (const sample::SeenToken& token : seen) {
    copy[token.id - begin] = sample::PenalisedLogit(copy[token.id - begin], token, row.params());
  }
  return {begin, padded, copy};
}

void Sampler::FindMaxima(const Row& row, int64_t part, Worker& worker) const {
  const auto find = [&](Logits which, float* maxima) {
    const Part view = ViewPart(row, part, which, worker);
    maxima += part * kBlocksPerPart;
    kernels_.block_maxima(view.logits, view.padded, maxima);
    std::fill(maxima + CeilDiv(view.padded, kSampleBlock), maxima + kBlocksPerPart, kImpossible);
  };
  find(Logits::kPenalised, row.maxima);
  if (row.penalised() && row.params().logprobs) find(Logits::kRaw, row.raw_maxima);
}

void Sampler::SetScale(Row& row) const {
  const auto largest = [this](const float* maxima) {
    return blocks() == 0 ? kImpossible : *std::max_element(maxima, maxima + blocks());
  };
  row.best = largest(row.maxima);
  row.raw_best = row.penalised() && row.params().logprobs ? Clean(largest(row.raw_maxima)) : Clean(row.best);
  if (!row.drawn()) return;
  row.scale.max = Clean(row.best);
  row.scale.bits = static_cast<float>(std::min<double>(1.4426950408889634 / row.params().temperature, kLargest));
  row.scale.floor = MinPFloor(row.scale.max, row.params());
}

void Sampler::SumWeights(const Row& row, int64_t part, Worker& worker) const {
  if (row.drawn()) {
    const Part view = ViewPart(row, part, Logits::kPenalised, worker);
    row.masses[part] = kernels_.sum_weights(view.logits, view.padded, row.scale);
  }
  if (row.params().logprobs) {
    const Part view = ViewPart(row, part, Logits::kRaw, worker);
    row.exps[part] = kernels_.sum_exp(view.logits, view.padded, row.raw_best);
  }
}

void Sampler::Choose(const Row& row, Worker& worker) const {
  if (!(row.best > kImpossible)) {
    *row.out =
        absl::InternalError(absl::StrCat("all ", vocab_, " logits at position ", row.wanted->draw.position,
                                         " are NaN or -inf; want at least one number: the model's weights are broken"));
    return;
  }
  sample::SampledToken token;
  if (!row.drawn()) {
    token.token_id = First(row, worker);
  } else {
    const double uniform = sample::UniformAt(row.wanted->draw);
    const bool ranked = row.params().top_k > 0 || row.params().top_p < 1;
    token.token_id = ranked ? DrawByRank(row, uniform, worker) : DrawById(row, uniform, worker);
  }
  if (row.params().logprobs) AddLogprobs(row, token, worker);
  *row.out = std::move(token);
}

// The lowest id of the largest logit.
int32_t Sampler::First(const Row& row, Worker& worker) const {
  const int64_t block = std::find(row.maxima, row.maxima + blocks(), row.best) - row.maxima;
  const Part view = ViewPart(row, block / kBlocksPerPart, Logits::kPenalised, worker);
  const float* begin = view.logits + block % kBlocksPerPart * kSampleBlock;
  return static_cast<int32_t>(block * kSampleBlock + (std::find(begin, begin + kSampleBlock, row.best) - begin));
}

int32_t Sampler::DrawById(const Row& row, double uniform, Worker& worker) const {
  const uint64_t total = std::accumulate(row.masses, row.masses + parts(), uint64_t{0});
  const uint64_t target = TargetOf(total, uniform);
  uint64_t mass = 0;
  int64_t part = 0;
  for (; mass + row.masses[part] <= target; ++part) mass += row.masses[part];
  const Part view = ViewPart(row, part, Logits::kPenalised, worker);
  uint64_t* weights = worker.weights.as<uint64_t>();
  kernels_.weights(view.logits, view.padded, row.scale, weights);
  int64_t i = 0;
  for (; mass + weights[i] <= target; ++i) mass += weights[i];
  return static_cast<int32_t>(view.begin + i);
}

int32_t Sampler::DrawByRank(const Row& row, double uniform, Worker& worker) const {
  const sample::SamplingParams& params = row.params();
  const uint64_t total = std::accumulate(row.masses, row.masses + parts(), uint64_t{0});
  RankTheKept(row, total, worker);
  Ranking& ranking = worker.ranking;
  uint64_t mass = total;
  if (params.top_k > 0) mass = params.top_k < ranking.count() ? ranking.AtRank(params.top_k).mass : ranking.mass();
  if (params.top_p < 1) mass = ranking.AtMass(ShareOf(mass, params.top_p)).mass;
  return ranking.AtMass(TargetOf(mass, uniform) + 1).id;
}

// Ranks at least those that top-k and top-p keep. A first bound takes few candidates: for top-k, k blocks have an entry
// that is not below it; for top-p, what lies under it is seldom more than the share that is cut. Where it was too high,
// a bound that cannot be takes its place.
void Sampler::RankTheKept(const Row& row, uint64_t total, Worker& worker) const {
  const sample::SamplingParams& params = row.params();
  const double cut = 1 - static_cast<double>(params.top_p);
  // Whole vocabularies of weights b bits under the largest are no more than the share that is cut.
  const double vocab_bits = std::log2(static_cast<double>(vocab_) * kWeightOfMax / static_cast<double>(total));
  const double certain_bits =
      params.top_k > 0 || cut == 0 ? kWeightBits + 1 : std::min(kWeightBits + 1, vocab_bits + 1 - std::log2(cut));
  const auto bound_at = [&row](double bits) {
    return static_cast<float>(std::max<double>(row.scale.max - bits / row.scale.bits, row.scale.floor));
  };
  const auto rank_from = [&](float bound) {
    worker.ranking.Build(Collect(row, Logits::kPenalised, bound, worker), bound, row.scale);
  };
  const float certain = bound_at(certain_bits);
  float bound = certain;
  if (params.top_k > 0 && params.top_k <= blocks()) {
    bound = std::max(certain, Clean(MaximumOfRank(row.maxima, params.top_k, worker)));
  } else if (cut > 0) {
    bound = std::max(certain, bound_at(10 - std::log2(cut)));
  }
  rank_from(bound);
  if (bound == certain) return;
  const bool holds_the_kept =
      params.top_k > 0 ? worker.ranking.count() >= params.top_k : worker.ranking.mass() >= ShareOf(total, params.top_p);
  if (!holds_the_kept) rank_from(certain);
}

int64_t Sampler::Collect(const Row& row, Logits which, float at_least, Worker& worker) const {
  int64_t count = 0;
  for (int64_t part = 0; part < parts(); ++part) {
    const Part view = ViewPart(row, part, which, worker);
    count += kernels_.collect(view.logits, view.padded, at_least, static_cast<int32_t>(view.begin),
                              worker.ranking.values() + count, worker.ranking.ids() + count);
  }
  return count;
}

// REQUIRES: 0 < rank <= blocks().
float Sampler::MaximumOfRank(const float* maxima, int64_t rank, Worker& worker) const {
  worker.maxima.assign(maxima, maxima + blocks());
  const auto at = worker.maxima.begin() + (rank - 1);
  std::nth_element(worker.maxima.begin(), at, worker.maxima.end(), std::greater<>());
  return *at;
}

void Sampler::AddLogprobs(const Row& row, sample::SampledToken& token, Worker& worker) const {
  const double norm = row.raw_best + std::log(std::accumulate(row.exps, row.exps + parts(), 0.0));
  token.logprob = static_cast<float>(Clean(row.logits[token.token_id]) - norm);
  const int64_t alternatives = *row.params().logprobs;
  if (alternatives == 0) return;
  float bound = -kLargest;
  if (alternatives <= blocks()) bound = std::max(bound, Clean(MaximumOfRank(row.raw_maxima, alternatives, worker)));
  const int64_t count = Collect(row, Logits::kRaw, bound, worker);
  const float* values = worker.ranking.values();
  worker.order.resize(count);
  std::iota(worker.order.begin(), worker.order.end(), 0);
  const auto end = worker.order.begin() + std::min(alternatives, count);
  std::partial_sort(worker.order.begin(), end, worker.order.end(),
                    [values](int32_t a, int32_t b) { return values[a] != values[b] ? values[a] > values[b] : a < b; });
  for (auto at = worker.order.begin(); at != end; ++at) {
    token.top.emplace_back(worker.ranking.ids()[*at], static_cast<float>(values[*at] - norm));
  }
}

}  // namespace swiftcache::engine::backend::cpu
