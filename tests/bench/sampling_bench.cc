// SPDX-License-Identifier: Apache-2.0
// What choosing the tokens of a step costs: microseconds a batch, by parameters, threads and shape of the logits.
// Peaked: ranks fall off by a power of 1.5, as in text. Flat: 0.1 of spread, so that nine tokens in ten are kept by a
// top_p of 0.9. The thread counts take turns, since shared machines change their speed from minute to minute.
//
//   swiftcache-sampling-bench [--logits F32_FILE] [--rows N] [--vocab N] [--repeats N]
//                             [--isa amx|avx512_bf16|avx512|avx2|baseline]
//
// --logits: rows of a model's logits, f32 and nothing else, to be measured beside the others.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "engine/backend/cpu/host_buffer.h"
#include "engine/backend/cpu/isa.h"
#include "engine/backend/cpu/sampler.h"
#include "engine/backend/cpu/thread_pool.h"
#include "tests/bench/fail.h"
#include "tests/bench/isa_flag.h"

namespace swiftcache::engine::backend::cpu {
namespace {

using sample::SamplingParams;
using sample::SamplingState;

struct Flags {
  std::string logits;
  int64_t rows = 16;
  int64_t vocab = 49152;
  int repeats = 51;
  Isa isa = engine::backend::cpu::kHighestIsa;
};

Flags Parse(int argc, char** argv) {
  Flags flags;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i], value = argv[i + 1];
    if (name == "--logits")
      flags.logits = value;
    else if (name == "--rows")
      flags.rows = std::atoll(value.c_str());
    else if (name == "--vocab")
      flags.vocab = std::atoll(value.c_str());
    else if (name == "--repeats")
      flags.repeats = std::atoi(value.c_str());
    else if (name == "--isa")
      flags.isa = IsaOf(value);
    else
      Fail("unknown flag " + name);
  }
  if (argc % 2 == 0) Fail(std::string(argv[argc - 1]) + " wants a value");
  if (flags.rows < 1 || flags.vocab < 1 || flags.repeats < 1) Fail("a number below 1");
  return flags;
}

std::unique_ptr<HostBuffer> Allocate(const Flags& flags) {
  auto buffer = HostBuffer::Allocate(flags.rows, flags.vocab);
  if (!buffer.ok()) Fail(std::string(buffer.status().message()));
  return *std::move(buffer);
}

std::unique_ptr<HostBuffer> Peaked(const Flags& flags) {
  std::mt19937 random(1);
  std::normal_distribution<float> noise(0, 0.3f);
  auto buffer = Allocate(flags);
  for (int64_t r = 0; r < flags.rows; ++r) {
    float* row = buffer->row(r);
    for (int64_t i = 0; i < flags.vocab; ++i) row[i] = 18 - 1.5f * std::log(i + 1.0f) + noise(random);
    std::shuffle(row, row + flags.vocab, random);
  }
  return buffer;
}

std::unique_ptr<HostBuffer> Flat(const Flags& flags) {
  std::mt19937 random(2);
  std::normal_distribution<float> noise(0, 0.1f);
  auto buffer = Allocate(flags);
  for (int64_t r = 0; r < flags.rows; ++r) std::generate_n(buffer->row(r), flags.vocab, [&] { return noise(random); });
  return buffer;
}

std::unique_ptr<HostBuffer> Read(const Flags& flags) {
  std::ifstream file(flags.logits, std::ios::binary);
  auto buffer = Allocate(flags);
  for (int64_t r = 0; r < flags.rows; ++r) {
    if (!file.read(reinterpret_cast<char*>(buffer->row(r)), flags.vocab * sizeof(float))) {
      Fail(flags.logits + " has no " + std::to_string(flags.rows) + " rows of " + std::to_string(flags.vocab));
    }
  }
  return buffer;
}

struct Wish {
  const char* name;
  SamplingParams params;
};

std::vector<Wish> Wishes() {
  return {{"greedy", {.temperature = 0}},
          {"temperature 1", {}},
          {"top_p 0.9", {.top_p = 0.9f}},
          {"top_p 0.99", {.top_p = 0.99f}},
          {"0.7, top_p 0.9, top_k 40", {.temperature = 0.7f, .top_p = 0.9f, .top_k = 40}},
          {"min_p 0.1", {.min_p = 0.1f}},
          {"top_p 0.9, repetition 1.1", {.top_p = 0.9f, .repetition_penalty = 1.1f}},
          {"greedy, 5 logprobs", {.temperature = 0, .logprobs = 5}}};
}

// Microseconds of one call of the sampler.
double Time(Sampler& sampler, const HostBuffer& logits, const std::vector<SamplingState>& states, int64_t position) {
  std::vector<SampleRow> rows;
  for (size_t r = 0; r < states.size(); ++r) rows.push_back(SampleRowOf(r, states[r], position));
  std::vector<Sampled> out(rows.size());
  const absl::Time begin = absl::Now();
  const absl::Status status = sampler.Sample(logits, rows, out);
  const double micros = absl::ToDoubleMicroseconds(absl::Now() - begin);
  if (!status.ok() || !out[0].ok()) Fail("sampling failed");
  return micros;
}

std::string Summary(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  char text[64];
  std::snprintf(text, sizeof(text), "%7.0f %7.0f", values[values.size() / 2], values[0]);
  return text;
}

void Measure(const char* shape, const HostBuffer& logits, const Flags& flags) {
  const SamplingKernels kernels = SamplingKernelsFor(BestIsa(flags.isa));
  ThreadPool one(1), two(2);
  Sampler alone(kernels, one), both(kernels, two);
  std::vector<int32_t> prompt;
  for (int i = 0; i < 1000; ++i) prompt.push_back(static_cast<int32_t>(i * 7919 % flags.vocab));
  for (const Wish& wish : Wishes()) {
    const std::vector<SamplingState> states(flags.rows, SamplingState(wish.params, 0, SeenIn(prompt, wish.params)));
    std::vector<double> alone_us, both_us;
    for (int repeat = 0; repeat < flags.repeats; ++repeat) {
      alone_us.push_back(Time(alone, logits, states, repeat));
      both_us.push_back(Time(both, logits, states, repeat));
    }
    std::printf("%-8s %-26s %s  %s\n", shape, wish.name, Summary(alone_us).c_str(), Summary(both_us).c_str());
  }
}

}  // namespace
}  // namespace swiftcache::engine::backend::cpu

int main(int argc, char** argv) {
  using namespace swiftcache::engine::backend::cpu;
  const Flags flags = Parse(argc, argv);
  std::printf("%ld rows of %ld entries, %s; microseconds, median and best of %d\n%-35s %15s  %15s\n", flags.rows,
              flags.vocab, IsaName(BestIsa(flags.isa)), flags.repeats, "", "1 thread", "2 threads");
  if (!flags.logits.empty()) Measure("model", *Read(flags), flags);
  Measure("peaked", *Peaked(flags), flags);
  Measure("flat", *Flat(flags), flags);
}
