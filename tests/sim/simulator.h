// SPDX-License-Identifier: Apache-2.0
// Virtual time, seeded chance and processes that die, stop and have clocks of their own: what a deterministic run is
// made of.
//
//   Simulator sim(seed);
//   Process engine(sim);
//   engine.Start();
//   engine.After(500, [&] { engine.LocalNow(); });
//   while (sim.RunNext(until)) {}
#pragma once

#include <cstdint>
#include <functional>
#include <queue>
#include <string>
#include <vector>

#include "absl/time/time.h"

namespace swiftcache::sim {

/// Of the simulated world, from its beginning.
using Micros = int64_t;

/// SplitMix64: small, fast, the same everywhere. Thread-safety: none.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t Next();
  /// In [0, bound). REQUIRES: bound > 0.
  int64_t Below(int64_t bound) { return static_cast<int64_t>(Next() % static_cast<uint64_t>(bound)); }
  /// In [low, high].
  int64_t Between(int64_t low, int64_t high) { return low + Below(high - low + 1); }
  bool Chance(double probability) { return static_cast<double>(Next() >> 11) * 0x1p-53 < probability; }

 private:
  uint64_t state_;
};

/// Runs events in the order of their times, those of one time in the order in which they were made. The first failure
/// ends the run. Thread-safety: none. Ownership: owns the events.
class Simulator {
 public:
  explicit Simulator(uint64_t seed) : random(seed) {}

  Micros now() const { return now_; }
  void At(Micros when, std::function<void()> event);
  /// False: nothing is left to do before `until`, or the run has failed. Time is then `until`.
  bool RunNext(Micros until);

  void Fail(const std::string& what);
  bool failed() const { return !failure_.empty(); }
  const std::string& failure() const { return failure_; }
  int64_t num_events() const { return num_events_; }

  Random random;
  /// Where a trace is wanted (one seed is replayed): prints it with the time.
  bool traced = false;
  void Trace(const std::function<std::string()>& line) const;

 private:
  struct Event {
    Micros when = 0;
    int64_t order = 0;
    std::function<void()> run;
    bool operator<(const Event& other) const { return when != other.when ? when > other.when : order > other.order; }
  };
  Micros now_ = 0;
  int64_t num_events_ = 0;
  std::priority_queue<Event> events_;
  std::string failure_;
};

/// A process: what is sent to it while it is stopped waits, what was meant for it before it died is gone. Its clock has
/// an offset and a rate of its own. Thread-safety: none. Ownership: borrows the simulator.
class Process {
 public:
  explicit Process(Simulator& sim);

  /// A new life.
  void Start();
  void Kill();
  void Stop();
  void Continue();
  bool alive() const { return alive_; }
  bool stopped() const { return stopped_; }
  int64_t life() const { return life_; }

  /// Runs `event` in the life that the process now has, at once or when it goes on.
  void Run(std::function<void()> event);
  void After(Micros delay, std::function<void()> event) { At(sim_.now() + delay, std::move(event)); }
  void At(Micros when, std::function<void()> event);

  absl::Time LocalNow() const;
  /// The first moment at which LocalNow() is `local` or later.
  Micros WhenLocal(absl::Time local) const;
  /// Called after everything that runs here.
  std::function<void()> after_each = [] {};

 private:
  Simulator& sim_;
  int64_t life_ = 0;
  bool alive_ = false, stopped_ = false;
  int64_t offset_nanos_ = 0;
  int64_t rate_ppm_ = 0;  // how much faster than the world's time
  std::vector<std::function<void()>> waiting_;
};

}  // namespace swiftcache::sim
