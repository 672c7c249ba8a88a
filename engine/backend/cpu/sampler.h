// SPDX-License-Identifier: Apache-2.0
// From rows of logits to tokens, all rows of a step at once.
//
//   Sampler sampler(SamplingKernelsFor(isa), pool);
//   RETURN_IF_ERROR(sampler.Sample(logits, rows, out));
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "engine/backend/cpu/host_buffer.h"
#include "engine/backend/cpu/memory.h"
#include "engine/backend/cpu/ranking.h"
#include "engine/backend/cpu/sampling_kernels.h"
#include "engine/backend/cpu/thread_pool.h"
#include "engine/backend/sampling.h"

namespace swiftcache::engine::backend::cpu {

/// Rows are cut into parts of kPartEntries entries, so that few rows keep all threads busy too: a pass over all parts
/// finds the maxima, a second one sums the weights of the rows that are drawn at random or want log-probabilities, and
/// then each row is chosen by itself, from what lies close enough to its maximum to be kept. All sums are exact, or in
/// an order that is fixed: the result depends neither on other rows nor on threads or ISA.
/// Thread-safety: none. Ownership: borrows the pool, owns scratch. Errors: RESOURCE_EXHAUSTED; those of a row in `out`.
class Sampler {
 public:
  Sampler(const SamplingKernels& kernels, ThreadPool& pool);
  /// As Backend::Sample.
  absl::Status Sample(const HostBuffer& logits, std::span<const SampleRow> rows, std::span<Sampled> out);

 private:
  static constexpr int64_t kPartEntries = 4096;
  static constexpr int64_t kBlocksPerPart = kPartEntries / kSampleBlock;

  // One row of a call.
  struct Row {
    const SampleRow* wanted;
    const float* logits;  // [vocab_], as the model gave them
    Sampled* out;
    float* maxima;      // [blocks()], after penalties
    float* raw_maxima;  // [blocks()], before them; the same where there are none
    uint64_t* masses;   // [parts()], where drawn
    double* exps;       // [parts()], where log-probabilities are wanted
    float best, raw_best;
    WeightScale scale;

    const sample::SamplingParams& params() const { return wanted->params; }
    bool penalised() const { return !wanted->seen.empty(); }
    bool drawn() const { return params().temperature > 0; }
  };
  enum class Logits { kRaw, kPenalised };
  // Entries [begin, begin + padded) of a row; those beyond the vocabulary are -inf.
  struct Part {
    int64_t begin, padded;
    const float* logits;
  };
  struct Worker {
    HostMemory part;     // f32 [kPartEntries]
    HostMemory weights;  // u64 [kPartEntries]
    Ranking ranking;
    std::vector<float> maxima;
    std::vector<int32_t> order;
  };

  int64_t parts() const;
  int64_t blocks() const;
  absl::Status Reserve();
  void SetRows(const HostBuffer& logits, std::span<const SampleRow> rows, std::span<Sampled> out);
  Part ViewPart(const Row& row, int64_t part, Logits which, Worker& worker) const;
  void FindMaxima(const Row& row, int64_t part, Worker& worker) const;
  void SetScale(Row& row) const;
  void SumWeights(const Row& row, int64_t part, Worker& worker) const;
  void Choose(const Row& row, Worker& worker) const;
  int32_t First(const Row& row, Worker& worker) const;
  int32_t DrawById(const Row& row, double uniform, Worker& worker) const;
  int32_t DrawByRank(const Row& row, double uniform, Worker& worker) const;
  void RankTheKept(const Row& row, uint64_t total, Worker& worker) const;
  int64_t Collect(const Row& row, Logits which, float at_least, Worker& worker) const;
  float MaximumOfRank(const float* maxima, int64_t rank, Worker& worker) const;
  void AddLogprobs(const Row& row, sample::SampledToken& token, Worker& worker) const;

  const SamplingKernels kernels_;
  ThreadPool& pool_;
  std::vector<Worker> workers_;
  int64_t reserved_ = 0;  // entries that the workers have room for
  int64_t vocab_ = 0;     // of the call, as what follows
  std::vector<Row> rows_;
  std::vector<Row*> summed_;  // rows that need the second pass
  std::vector<float> maxima_, raw_maxima_;
  std::vector<uint64_t> masses_;
  std::vector<double> exps_;
};

}  // namespace swiftcache::engine::backend::cpu
