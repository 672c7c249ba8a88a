// SPDX-License-Identifier: Apache-2.0
// What a step costs beside its model: scheduler, prefix tree, block tables, leases, with nothing computed. Own memory
// and leases are full of idle blocks, so that each new block of a row evicts one and spills one; the rows share their
// prompt but for its end, and its oldest blocks lie in leases. One axis is varied at a time. Times are those of the
// thread's CPU: what else the machine does is left out.
//
//   swiftcache-bookkeeping-bench [step | wait | drain | loop | unused | counted | counted-alone | counted-sharing]
//
// unused: what it costs to share with nobody. counted: steps alone, for tests/bench/instructions.py; the last two: those of
// `unused`, for tests/bench/leases.py.
#include <algorithm>
#include <cstdio>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/kv/kv_cache.h"
#include "engine/sched/scheduler.h"
#include "glog/logging.h"
#include "tests/bench/bookkeeping.h"
#include "tests/bench/counted.h"

namespace swiftcache::engine::sched {
namespace {

constexpr int64_t kOutputRoom = 512;  // tokens that a row may grow by
constexpr int64_t kStoresAtOnce = 64, kFetchesAtOnce = 64;
constexpr int64_t kDrainBatch = 8;

/// One engine's bookkeeping without the engine.
class World {
 public:
  explicit World(const Sizes& sizes)
      : sizes_(sizes),
        cache_({.num_blocks = sizes.leases > 0 ? sizes.blocks / 2 : sizes.blocks,
                .block_tokens = kBlockTokens,
                .may_borrow = sizes.leases > 0,
                .max_chunk_tokens = 512}),
        scheduler_(
            {.max_num_seqs = 2 * sizes.rows, .max_num_batched_tokens = 8192, .max_tokens_touching_regions = 2048},
            &cache_) {
    for (int64_t i = 0; i < sizes.leases; ++i) {
      regions_.push_back(cache_.AddRegion(sizes.blocks / 2 / sizes.leases, absl::StrCat("donor", i % 4)));
    }
  }

  /// A cache full of idle blocks, rows that decode, the oldest blocks of their prompt in leases.
  void Fill() {
    const std::vector<int32_t> shared = Fresh(sizes_.prompt_tokens - kTailTokens);
    Cache(shared);
    FillUntil([this] { return cache_.local().free + cache_.leased_in().free < sizes_.blocks / 4; });
    AddRows(sizes_.rows, shared);
    while (std::any_of(sequences_.begin(), sequences_.end(), [](auto& s) { return s.remaining_tokens() > 1; })) Step();
    FillUntil([this] { return cache_.evicted_total() > 0; });
    do {  // until the watermark is free
      FinishMoves();
      moves_ = cache_.TakeMoves(kStoresAtOnce, kFetchesAtOnce);
    } while (!moves_.empty());
  }
  void AddRows(int64_t count, const std::vector<int32_t>& shared) {
    for (int64_t i = 0; i < count; ++i) {
      std::vector<int32_t> tokens = shared;
      const std::vector<int32_t> tail = Fresh(kTailTokens + i % kBlockTokens);  // blocks do not end all in one step
      tokens.insert(tokens.end(), tail.begin(), tail.end());
      Add(std::move(tokens));
    }
  }
  Sequence& Add(std::vector<int32_t> tokens) {
    Sequence& sequence = sequences_.emplace_back();
    sequence.id = SequenceId(static_cast<int64_t>(sequences_.size()));
    sequence.prompt_tokens = static_cast<int64_t>(tokens.size());
    tokens.reserve(tokens.size() + kOutputRoom);
    sequence.tokens = TokenList(std::move(tokens));
    scheduler_.Add(&sequence);
    return sequence;
  }

  /// Copies that began in the step before have arrived; returns the tokens of the step.
  int64_t Step() {
    for (const kv::Move& move : moves_) cache_.FinishMove(move);
    const StepPlan plan = scheduler_.Plan();
    moves_ = cache_.TakeMoves(kStoresAtOnce, kFetchesAtOnce);
    cache_.TakeLeaseWish(0);
    scheduler_.NoteComputed(plan);
    scheduler_.Commit(plan);
    int64_t tokens = 0;
    for (const Chunk& chunk : plan.chunks) {
      if (chunk.samples) chunk.sequence->tokens.push_back(next_token_++);
      tokens += chunk.num_tokens;
    }
    return tokens;
  }

  /// As the loop does: moves what is in use, tells its readers, forgets the rest. Returns the microseconds.
  double Drain(kv::RegionId region) {
    const double begin = CpuMicros();
    cache_.RegionDraining(region);
    while (cache_.region(region).used > 0) {
      const std::vector<kv::Move> moves = cache_.PlanDrain(region, kDrainBatch);
      if (moves.empty()) break;
      for (const kv::Move& move : moves) cache_.FinishMove(move);
    }
    std::vector<Sequence*> readers;
    const kv::KvCache::Readers reads = cache_.ReadersOf(region);
    for (Sequence* sequence : scheduler_.running()) {
      if (reads.Has(sequence->blocks)) readers.push_back(sequence);
    }
    for (Sequence* sequence : readers) scheduler_.Reset(sequence);
    cache_.DropRegion(region);
    return CpuMicros() - begin;
  }
  void FinishMoves() {
    for (const kv::Move& move : moves_) cache_.FinishMove(move);
    moves_.clear();
  }

  std::vector<int32_t> Fresh(int64_t count) {
    std::vector<int32_t> tokens(std::max<int64_t>(count, 0));
    for (int32_t& token : tokens) token = next_token_++;
    return tokens;
  }
  const std::vector<kv::RegionId>& regions() const { return regions_; }
  kv::KvCache& cache() { return cache_; }
  Scheduler& scheduler() { return scheduler_; }

 private:
  void Cache(const std::vector<int32_t>& tokens) {
    FinishMoves();
    kv::BlockTable table;
    cache_.Attach(table, "", tokens);
    const auto size = static_cast<int64_t>(tokens.size());
    for (int64_t end = std::min<int64_t>(size, 512); table.size() < cache_.BlocksFor(size);
         end = std::min<int64_t>(size, end + 512)) {
      while (cache_.Grow(table, end) != kv::Growth::kDone) {
        for (const kv::Move& move : cache_.TakeMoves(kStoresAtOnce, kFetchesAtOnce)) cache_.FinishMove(move);
      }
      cache_.Commit(table, tokens, end);
    }
    cache_.Release(table);
  }
  template <typename Full>
  void FillUntil(const Full& full) {
    while (!full()) Cache(Fresh(1024));
  }

  const Sizes sizes_;
  kv::KvCache cache_;
  Scheduler scheduler_;
  std::list<Sequence> sequences_;  // destroyed before the cache
  std::vector<kv::RegionId> regions_;
  std::vector<kv::Move> moves_;
  int32_t next_token_ = 0;
};

void MeasureSteps() {
  std::printf("%8s %8s %9s %14s | %12s %14s\n", "rows", "leases", "blocks", "prompt tokens", "us a step", "tokens/s");
  const std::vector<Sizes> lines = {{.rows = 1},
                                    {.rows = 16},
                                    {.rows = 256},
                                    {.rows = 1000},
                                    {.leases = 0},
                                    {.leases = 100},
                                    {.leases = 1000},
                                    {.blocks = 10000},
                                    {.blocks = 1000000},
                                    {.prompt_tokens = 100},
                                    {.prompt_tokens = 10000},
                                    {.prompt_tokens = 100000},
                                    {.rows = 1000, .leases = 1000, .blocks = 1000000, .prompt_tokens = 100000}};
  for (const Sizes& sizes : lines) {
    World world(sizes);
    world.Fill();
    const double micros = MicrosOfAStep(world, sizes.rows);
    std::printf("%8ld %8ld %9ld %14ld | %12.1f %14.0f\n", sizes.rows, sizes.leases, sizes.blocks, sizes.prompt_tokens,
                micros, static_cast<double>(sizes.rows) * 1e6 / micros);
    std::fflush(stdout);
  }
}

// Behind rows that hold most of the memory a prompt waits: it has most of its tokens in common with them, and the rest
// does not fit.
void MeasureWaiting() {
  std::printf("%14s | %26s %12s\n", "prompt tokens", "us a step, nobody waits", "it waits");
  for (const int64_t prompt_tokens : {1000, 10000, 100000}) {
    constexpr int64_t kRows = 256;
    const int64_t own_blocks = kRows * (kTailTokens + kOutputRoom) / kBlockTokens;
    World world({.rows = kRows, .leases = 0, .blocks = prompt_tokens / kBlockTokens + own_blocks});
    const std::vector<int32_t> shared = world.Fresh(prompt_tokens);
    world.AddRows(1, shared);
    while (world.Step() > 1) {
    }
    world.AddRows(kRows - 1, shared);
    while (world.scheduler().num_running() < kRows || world.Step() != kRows) {
      if (world.scheduler().num_running() < kRows) world.Step();
    }
    const double alone = MicrosOfAStep(world, kRows);
    std::vector<int32_t> tokens = shared;
    const std::vector<int32_t> rest = world.Fresh((own_blocks - 64) * kBlockTokens);
    tokens.insert(tokens.end(), rest.begin(), rest.end());
    world.Add(std::move(tokens));
    const double waiting = MicrosOfAStep(world, kRows);
    CHECK_EQ(world.scheduler().num_waiting(), 1);
    std::printf("%14ld | %26.1f %12.1f\n", prompt_tokens, alone, waiting);
    std::fflush(stdout);
  }
}

void MeasureDrains() {
  std::printf("%8s %9s %14s | %14s %16s\n", "leases", "blocks", "prompt tokens", "all drains, ms", "the longest, us");
  const std::vector<Sizes> lines = {{},
                                    {.leases = 100},
                                    {.leases = 1000},
                                    {.leases = 1000, .blocks = 1000000},
                                    {.leases = 1000, .prompt_tokens = 100000},
                                    {.leases = 1000, .blocks = 1000000, .prompt_tokens = 100000}};
  for (const Sizes& sizes : lines) {
    World world(sizes);
    world.Fill();
    world.FinishMoves();
    double sum = 0, longest = 0;
    for (const kv::RegionId region : world.regions()) {
      const double micros = world.Drain(region);
      sum += micros;
      longest = std::max(longest, micros);
      if (sum > 60e6) break;
    }
    std::printf("%8ld %9ld %14ld | %14.2f %16.1f%s\n", sizes.leases, sizes.blocks, sizes.prompt_tokens, sum / 1e3,
                longest, sum > 60e6 ? "  (given up)" : "");
    std::fflush(stdout);
  }
}

void CountSteps() {
  constexpr int64_t kRows = 16, kSteps = 1000;
  World world({.rows = kRows, .blocks = 4000});
  world.Fill();
  swiftcache_counted([&] {
    for (int64_t step = 0; step < kSteps; ++step) CHECK_EQ(world.Step(), kRows) << "a row waits";
  });
}

}  // namespace

int Main(std::string_view part) {
  struct Part {
    const char* name;
    void (*run)();
    bool by_default = true;
  };
  const Part parts[] = {{"step", MeasureSteps},
                        {"wait", MeasureWaiting},
                        {"drain", MeasureDrains},
                        {"loop", MeasureLoop},
                        {"unused", MeasureUnused},
                        {"counted", CountSteps, false},
                        {"counted-alone", [] { CountUnused(/*sharing=*/false); }, false},
                        {"counted-sharing", [] { CountUnused(/*sharing=*/true); }, false}};
  bool known = part.empty();
  for (const Part& one : parts) {
    if (part.empty() ? !one.by_default : part != one.name) continue;
    known = true;
    one.run();
  }
  if (known) return 0;
  std::fprintf(stderr, "usage: swiftcache-bookkeeping-bench [PART], one of:");
  for (const Part& one : parts) std::fprintf(stderr, " %s", one.name);
  std::fprintf(stderr, "\n");
  return part == "--help" ? 0 : 2;
}

}  // namespace swiftcache::engine::sched

int main(int argc, char** argv) { return swiftcache::engine::sched::Main(argc > 1 ? argv[1] : ""); }
