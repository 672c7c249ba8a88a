// SPDX-License-Identifier: Apache-2.0
// An engine in virtual time: the real scheduler, cache and reports of demand, with a clock in the place of a model.
//
//   Engine engine({.name = "chat", .num_blocks = 512}, load, neighbours);
//   engine.RunUntil(now);
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "engine/exec/window_tracker.h"
#include "engine/kv/kv_cache.h"
#include "engine/lease/lease.h"
#include "engine/sched/scheduler.h"
#include "tests/sim/worth/load.h"

namespace swiftcache::sim::worth {

class Engine;

/// Whom an engine asks for memory. What it does is done when the call returns.
class Neighbours {
 public:
  virtual ~Neighbours() = default;
  virtual void TakeBack(Engine& donor, int64_t blocks) = 0;
  virtual void Wish(Engine& borrower, int64_t blocks) = 0;
  virtual void Report(Engine& engine, const engine::coordinator::Window& window) = 0;
};

/// Units: tokens, except as named.
struct Outcome {
  int64_t prompt_tokens = 0, found = 0;  // of prompts; of these, in the cache
  int64_t computed = 0;
  int64_t again = 0;           // of the computed: whose KV had been there before
  std::vector<double> waking;  // seconds to first tokens, of prompts in the first kWaking seconds after an idle minute
};

/// What a copy, a message or an allocation takes is nothing beside seconds. Thread-safety: none.
class Engine {
 public:
  static constexpr int64_t kBlockTokens = 16;
  static constexpr double kWaking = 20;
  struct Options {
    std::string name;
    int64_t num_blocks = 0;
    absl::Duration window = absl::Seconds(60);
    double prefill_seconds = 0.0002, decode_seconds = 0.01;  // of a token; of a step that decodes
  };
  Engine(const Options& options, const Load& load, Neighbours& neighbours);

  /// Takes what arrives until then, and computes until it is busy beyond it.
  void RunUntil(double now);

  // As a donor.
  bool Clear(const engine::lease::Extent& extent);
  void TakeBack(const engine::lease::Extent& extent);
  // As a borrower.
  engine::kv::RegionId Use(int64_t blocks, const std::string& donor);
  void GiveUp(engine::kv::RegionId region);
  void SetLendable(int64_t blocks);

  const Options& options() const { return options_; }
  const Outcome& outcome() const { return outcome_; }
  engine::kv::KvCache& cache() { return cache_; }
  bool busy() const { return scheduler_.has_work(); }

 private:
  struct Job : engine::sched::Sequence {
    const Request* request = nullptr;
    double arrived = 0;
    int64_t answered = 0;
    bool wakes = false;
  };

  void Arrive(const Request& request, double now);
  void Submit(const Request& request, double now);
  bool Step();
  void Compute(const engine::sched::StepPlan& plan);
  void Count(const Job& job, int64_t tokens);
  void Answer(Job& job);
  void Advance();

  const Options options_;
  const Load& load_;
  Neighbours& neighbours_;
  engine::kv::KvCache cache_;
  engine::sched::Scheduler scheduler_;
  engine::exec::WindowTracker window_;
  size_t next_request_ = 0;
  std::map<int64_t, std::unique_ptr<Job>> jobs_;           // by conversation
  std::map<int64_t, std::deque<const Request*>> waiting_;  // for the turn before, by conversation
  std::map<int64_t, int64_t> known_;                       // by conversation: tokens that were computed once
  int64_t last_id_ = 0;
  double free_at_ = 0, idle_since_ = 0, woke_ = -kWaking;
  Outcome outcome_;
};

}  // namespace swiftcache::sim::worth
