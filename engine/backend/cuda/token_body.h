// SPDX-License-Identifier: Apache-2.0
// The body that chooses a token from a row of logits, by the rules of engine/backend/sampling.h. Weights are the whole
// numbers that the CPU backend computes, bit for bit, and sums of them are exact, so that both choose the same token.
// Compiled without fused multiply-adds.
//
//   ChooseToken(block, memory, logits, vocab, choice, result);     // one block of threads a row
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "engine/backend/gpu_code.h"

namespace swiftcache::engine::backend::cuda {

/// A token whose logit the penalties change.
struct SeenLogit {
  int32_t id = 0;
  int32_t occurrences = 0;
};

/// What a row wants, in the device's terms. Pointers are the device's.
struct TokenChoice {
  int64_t logits_row = 0;
  float* penalised = nullptr;       // [vocab] for a copy; null where no token was seen
  const SeenLogit* seen = nullptr;  // [num_seen]
  int64_t num_seen = 0;
  float repetition_penalty = 1, presence_penalty = 0, frequency_penalty = 0;
  bool drawn = false;  // else the first of the ranks
  float bits = 0;      // log2(e) / temperature
  float temperature = 0;
  double log_min_p = 0;  // -inf: no min-p
  int32_t top_k = 0;     // 0: all
  float top_p = 1;
  double uniform = 0;
  bool logprobs = false;
  int32_t num_top = 0;    // alternatives
  int32_t first_top = 0;  // of `top_ids` and `top_logits`
};

struct ChosenToken {
  int32_t id = 0;
  int32_t failed = 0;  // 1: no logit is a number above -inf
  float logit = 0;     // as the model gave it
  float max = 0;       // of the row, likewise
  double exps = 0;     // the sum of exp(logit - max)
  int32_t num_top = 0;
};

/// How many tokens, and what mass of them, have keys that begin with the same bits; by the bits that follow.
template <int kBits>
struct RankBins {
  static constexpr int64_t kBins = int64_t{1} << kBits;
  uint64_t masses[kBins];
  uint32_t counts[kBins];
};

/// Memory of a block that chooses.
struct ChoiceMemory {
  static constexpr int kFirstBits = 10, kNextBits = 11;  // of a key's 32: 10, 11 and 11
  static constexpr int64_t kRuns = 1024, kGroup = 32;    // kGroup: bins
  RankBins<kFirstBits> first;
  RankBins<kNextBits> next;
  union {
    uint64_t runs[kRuns];
    int32_t ids[RankBins<kNextBits>::kBins];  // of the token in a bin of `next`, where it is the only one
  };
  uint64_t group_masses[RankBins<kNextBits>::kBins / kGroup];
  uint32_t group_counts[RankBins<kNextBits>::kBins / kGroup];
  uint64_t count, mass;  // found so far, of better ranks
  uint32_t prefix;
  int32_t id;
};

GPU_CODE inline float CleanLogit(float x) {
  const float largest = std::numeric_limits<float>::max();
  return x > largest ? largest : x;
}

/// The key of a logit, larger for larger ones; that of NaN is below all.
GPU_CODE inline uint32_t KeyOf(float x) {
  if (x != x) return 0;
  const auto bits = std::bit_cast<uint32_t>(CleanLogit(x) + 0.0f);  // -0 is 0
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

/// 2^(30 - y) = mantissa * 2^-shift. y: in [0, 2^22).
struct PowerOfTwo {
  float mantissa = 0;
  uint32_t shift = 0;
};

GPU_CODE inline PowerOfTwo Exp2OfMinus(float y) {
  const float magic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to whole numbers
  const float rounded = y + magic;
  const float f = (rounded - magic) - y;  // exact, in [-1/2, 1/2]
  // ln(2)^i / i!, the series of 2^f: what is left out is below 2^-27.
  float p = 1.5252734e-5f;
  p = p * f + 1.5403530e-4f;
  p = p * f + 1.3333558e-3f;
  p = p * f + 9.6181291e-3f;
  p = p * f + 5.5504109e-2f;
  p = p * f + 2.4022651e-1f;
  p = p * f + 6.9314718e-1f;
  p = p * f + 1.0f;
  return {p * 1073741824.0f, std::bit_cast<uint32_t>(rounded) - std::bit_cast<uint32_t>(magic)};
}

/// A logit's weight, in units of 2^-40 of that of the largest.
struct WeightRule {
  float max = 0, bits = 0, floor = 0;

  GPU_CODE float BitsUnderMax(float x, float cap) const {
    if (!(x >= floor)) return cap;  // NaN too
    const float under = (max - CleanLogit(x)) * bits;
    return under < cap ? under : cap;
  }
  GPU_CODE uint64_t operator()(float x) const {
    const PowerOfTwo power = Exp2OfMinus(BitsUnderMax(x, 60.0f));
    return (static_cast<uint64_t>(static_cast<uint32_t>(power.mantissa)) << 10) >> power.shift;
  }
};

GPU_CODE inline double ExpUnderMax(float x, float max) {
  const float infinity = std::numeric_limits<float>::infinity();
  const WeightRule rule = {max, 1.44269504f, -infinity};
  const PowerOfTwo power = Exp2OfMinus(rule.BitsUnderMax(x, 100.0f));
  return static_cast<double>(std::bit_cast<float>(std::bit_cast<uint32_t>(power.mantissa) - (power.shift << 23)));
}

/// The lowest logit that min-p leaves, as the smallest float that is not below it.
GPU_CODE inline float MinPFloor(float max, float temperature, double log_min_p) {
  const float lowest = -std::numeric_limits<float>::max();
  const double exact = max + temperature * log_min_p;
  if (!(exact > lowest)) return lowest;
  const auto rounded = static_cast<float>(exact);
  return rounded < exact ? std::nextafter(rounded, std::numeric_limits<float>::max()) : rounded;
}

/// Puts the tokens whose keys begin with `prefix` into `bins`, by the bits of the key from `shift` on. `note`: of a token and
/// its bin.
template <class Block, int kBits, class Note>
GPU_CODE void FillBins(Block& block, RankBins<kBits>& bins, const float* x, int64_t n, const WeightRule& weight,
                       uint64_t prefix, int shift, Note note) {
  block.ForEach(RankBins<kBits>::kBins, [&](int64_t bin) { bins.counts[bin] = bins.masses[bin] = 0; });
  block.ForEach(n, [&](int64_t i) {
    const uint32_t key = KeyOf(x[i]);
    if (uint64_t{key} >> (shift + kBits) != prefix) return;
    const uint32_t bin = (key >> shift) & (RankBins<kBits>::kBins - 1);
    Block::Count(&bins.counts[bin]);
    const uint64_t mass = weight(x[i]);
    if (mass > 0) Block::Add(&bins.masses[bin], mass);
    note(i, bin);
  });
}

/// Adds the bin in which the sum reaches `target` to the prefix, and what is in better ones to what was found.
template <class Block, int kBits>
GPU_CODE void ChooseBin(Block& block, ChoiceMemory& m, const RankBins<kBits>& bins, bool by_count, uint64_t target) {
  constexpr int64_t kGroup = ChoiceMemory::kGroup, kGroups = RankBins<kBits>::kBins / kGroup;
  block.ForEach(kGroups, [&](int64_t group) {
    uint64_t mass = 0;
    uint32_t count = 0;
    for (int64_t bin = group * kGroup; bin < (group + 1) * kGroup; ++bin) {
      mass += bins.masses[bin];
      count += bins.counts[bin];
    }
    m.group_masses[group] = mass;
    m.group_counts[group] = count;
  });
  block.Once([&] {
    const auto passes = [&](uint64_t mass, uint32_t count) {
      if ((by_count ? m.count + count : m.mass + mass) >= target) return false;
      m.mass += mass;
      m.count += count;
      return true;
    };
    int64_t group = kGroups - 1;
    while (group > 0 && passes(m.group_masses[group], m.group_counts[group])) --group;
    int64_t bin = (group + 1) * kGroup - 1;
    while (bin > 0 && passes(bins.masses[bin], bins.counts[bin])) --bin;
    m.prefix = m.prefix << kBits | static_cast<uint32_t>(bin);
  });
}

/// Of those that are equal, which weigh the same: how many of them are wanted, and which one is the last of these.
template <class Block>
GPU_CODE void FindAmongEqual(Block& block, ChoiceMemory& m, const float* x, int64_t n, const WeightRule& weight,
                             bool by_count, uint64_t target) {
  const uint32_t key = m.prefix;
  const int64_t run = (n + ChoiceMemory::kRuns - 1) / ChoiceMemory::kRuns;
  block.ForEach(ChoiceMemory::kRuns, [&](int64_t r) {
    uint64_t equal = 0;
    for (int64_t i = r * run; i < (r + 1) * run && i < n; ++i) equal += KeyOf(x[i]) == key ? 1 : 0;
    m.runs[r] = equal;
  });
  block.Once([&] {
    int64_t r = 0, i = 0;
    uint64_t mass_of_one = 0, wanted = 0;
    for (; m.runs[r] == 0; ++r) {
    }
    for (i = r * run; KeyOf(x[i]) != key; ++i) {
    }
    mass_of_one = weight(x[i]);
    wanted = by_count ? target - m.count : (target - m.mass + mass_of_one - 1) / (mass_of_one == 0 ? 1 : mass_of_one);
    if (wanted == 0) wanted = 1;
    m.count += wanted;
    m.mass += wanted * mass_of_one;
    for (; m.runs[r] < wanted; ++r) wanted -= m.runs[r];
    for (i = r * run;; ++i) {
      if (KeyOf(x[i]) == key && --wanted == 0) break;
    }
    m.id = static_cast<int32_t>(i);
  });
}

/// The first rank at which the sum of what `by_count` says (ranks, or their weights) reaches `target`; ranks go by
/// descending logit, then by ascending id. Leaves its id in the memory, returns the mass of all up to and with it. Finds the
/// logit by the bits of its key, those of m.first, then eleven and eleven more, then the id if others are equal.
/// REQUIRES: m.first is filled. The sum over all reaches it, > 0.
template <class Block>
GPU_CODE uint64_t FindRank(Block& block, ChoiceMemory& m, const float* x, int64_t n, const WeightRule& weight,
                           bool by_count, uint64_t target) {
  constexpr int kNextBits = ChoiceMemory::kNextBits;
  block.Once([&] {
    m.count = m.mass = 0;
    m.prefix = 0;
  });
  ChooseBin(block, m, m.first, by_count, target);
  FillBins(block, m.next, x, n, weight, m.prefix, kNextBits, [](int64_t i, uint32_t bin) {});
  ChooseBin(block, m, m.next, by_count, target);
  FillBins(block, m.next, x, n, weight, m.prefix, 0,
           [&](int64_t i, uint32_t bin) { Block::Keep(&m.ids[bin], static_cast<int32_t>(i)); });
  ChooseBin(block, m, m.next, by_count, target);
  const uint32_t bin = m.prefix & (RankBins<kNextBits>::kBins - 1);
  if (m.next.counts[bin] > 1) {
    FindAmongEqual(block, m, x, n, weight, by_count, target);
  } else {
    block.Once([&] {
      m.id = m.ids[bin];
      m.mass += m.next.masses[bin];
    });
  }
  const uint64_t mass = m.mass;
  block.Sync();
  return mass;
}

/// The first id at which the sum of weights exceeds `target`. REQUIRES: the sum over all does.
template <class Block>
GPU_CODE void FindById(Block& block, ChoiceMemory& m, const float* x, int64_t n, const WeightRule& weight,
                       uint64_t target) {
  const int64_t run = (n + ChoiceMemory::kRuns - 1) / ChoiceMemory::kRuns;
  block.ForEach(ChoiceMemory::kRuns, [&](int64_t r) {
    uint64_t mass = 0;
    for (int64_t i = r * run; i < (r + 1) * run && i < n; ++i) mass += weight(x[i]);
    m.runs[r] = mass;
  });
  block.Once([&] {
    uint64_t mass = 0;
    int64_t r = 0;
    for (; mass + m.runs[r] <= target; ++r) mass += m.runs[r];
    int64_t i = r * run;
    for (uint64_t mine = weight(x[i]); mass + mine <= target; mine = weight(x[++i])) mass += mine;
    m.id = static_cast<int32_t>(i);
  });
}

/// The mass of what top-k and top-p keep, of `total`.
template <class Block>
GPU_CODE uint64_t KeptMass(Block& block, ChoiceMemory& m, const float* x, int64_t n, const WeightRule& weight,
                           const TokenChoice& choice, uint64_t total) {
  uint64_t mass = total;
  if (choice.top_k > 0 && choice.top_k < n) {
    mass = FindRank(block, m, x, n, weight, /*by_count=*/true, static_cast<uint64_t>(choice.top_k));
  }
  if (choice.top_p < 1) {
    const auto least = static_cast<uint64_t>(std::ceil(static_cast<double>(choice.top_p) * static_cast<double>(mass)));
    mass = FindRank(block, m, x, n, weight, /*by_count=*/false, least == 0 ? 1 : least);
  }
  return mass;
}

/// The row with its penalties: the row itself where there are none.
template <class Block>
GPU_CODE const float* Penalise(Block& block, const float* logits, int64_t n, const TokenChoice& choice) {
  if (choice.penalised == nullptr) return logits;
  float* const x = choice.penalised;
  block.ForEach(n, [&](int64_t i) { x[i] = logits[i]; });
  block.ForEach(choice.num_seen, [&](int64_t i) {
    const SeenLogit seen = choice.seen[i];
    if (seen.id < 0 || seen.id >= n) return;
    float logit = x[seen.id];
    logit = logit > 0 ? logit / choice.repetition_penalty : logit * choice.repetition_penalty;
    if (seen.occurrences > 0) {
      logit = logit - (choice.frequency_penalty * static_cast<float>(seen.occurrences) + choice.presence_penalty);
    }
    x[seen.id] = logit;
  });
  return x;
}

/// The alternatives, best first: each the best of those behind the one before.
template <class Block>
GPU_CODE void FindTop(Block& block, const float* logits, int64_t n, int64_t count, int32_t* ids, float* values) {
  uint64_t before = ~uint64_t{0};
  for (int64_t k = 0; k < count; ++k) {
    // The key, then the id turned round: of equal logits the lowest id is the largest number.
    const uint64_t best = block.template Max<uint64_t>(n, 0, [&](int64_t i) -> uint64_t {
      const uint64_t rank = uint64_t{KeyOf(logits[i])} << 32 | (0xffffffffu - static_cast<uint32_t>(i));
      return rank < before ? rank : 0;
    });
    before = best;
    block.Once([&] {
      ids[k] = static_cast<int32_t>(0xffffffffu - static_cast<uint32_t>(best));
      values[k] = CleanLogit(logits[0xffffffffu - static_cast<uint32_t>(best)]);
    });
  }
}

/// logits: [n]; top_ids, top_logits: [choice.num_top] of this row. Leaves the token's id in the memory, 0 where it failed.
template <class Block>
GPU_CODE void ChooseToken(Block& block, ChoiceMemory& m, const float* logits, int64_t n, const TokenChoice& choice,
                          ChosenToken* result, int32_t* top_ids, float* top_logits) {
  const float impossible = -std::numeric_limits<float>::infinity();
  const float* const x = Penalise(block, logits, n, choice);
  const float best = block.template Max<float>(n, impossible, [&](int64_t i) { return x[i]; });
  if (!(best > impossible)) {
    block.Once([&] {
      m.id = 0;
      *result = {.failed = 1};
    });
    return;
  }
  if (!choice.drawn) {
    const int64_t first = block.template Max<int64_t>(n, 0, [&](int64_t i) { return x[i] == best ? n - i : 0; });
    block.Once([&] { m.id = static_cast<int32_t>(n - first); });
  } else {
    const float max = CleanLogit(best);
    const WeightRule weight = {max, choice.bits, MinPFloor(max, choice.temperature, choice.log_min_p)};
    const bool ranked = choice.top_k > 0 || choice.top_p < 1;
    uint64_t mass = 0;
    if (ranked) {
      FillBins(block, m.first, x, n, weight, /*prefix=*/0, 2 * ChoiceMemory::kNextBits, [](int64_t i, uint32_t bin) {});
      mass = block.template Sum<uint64_t>(RankBins<ChoiceMemory::kFirstBits>::kBins,
                                          [&](int64_t bin) { return m.first.masses[bin]; });
      mass = KeptMass(block, m, x, n, weight, choice, mass);
    } else {
      mass = block.template Sum<uint64_t>(n, [&](int64_t i) { return weight(x[i]); });
    }
    auto target = static_cast<uint64_t>(choice.uniform * static_cast<double>(mass));
    if (target >= mass) target = mass - 1;
    if (ranked) {
      (void)FindRank(block, m, x, n, weight, /*by_count=*/false, target + 1);
    } else {
      FindById(block, m, x, n, weight, target);
    }
  }
  block.Once([&] { *result = {.id = m.id, .logit = CleanLogit(logits[m.id])}; });
  if (!choice.logprobs) return;
  const float raw = CleanLogit(block.template Max<float>(n, impossible, [&](int64_t i) { return logits[i]; }));
  const double exps = block.template Sum<double>(n, [&](int64_t i) { return ExpUnderMax(logits[i], raw); });
  FindTop(block, logits, n, choice.num_top, top_ids, top_logits);
  block.Once([&] {
    result->max = raw;
    result->exps = exps * 0x1.0p-30;
    result->num_top = choice.num_top;
  });
}

}  // namespace swiftcache::engine::backend::cuda
