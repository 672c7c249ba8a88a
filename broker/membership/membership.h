// SPDX-License-Identifier: Apache-2.0
// The table of engines as a pure value: who is registered, who died, who stands still. Time is handed in.
//
//   Membership table({.heartbeat_interval = absl::Seconds(1)});
//   RETURN_IF_ERROR(table.Register(info, clock.Now()));
//   table.Expire(clock.Now());
//   for (const Change& change : table.TakeChanges()) Tell(change);
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "broker/membership/engine_status.h"
#include "common/base/units.h"

namespace swiftcache::broker::membership {

/// The table holds no more, whatever the options: the bytes of so many arenas add up within 64 bits.
inline constexpr int64_t kMaxEngines = 4096;
static_assert(CheckedMul(kMaxEngines, kMaxArenaBytes).has_value());

struct Options {
  absl::Duration heartbeat_interval = absl::Seconds(1);
  int64_t heartbeat_misses = 3;                      // an engine is dead after this many intervals of silence
  absl::Duration stall_timeout = absl::Seconds(30);  // of progress that stands still while there is work
  int64_t max_engines = kMaxEngines;
};

struct Removed {
  std::string name;
  bool died = false;  // false: it took its leave
};
/// One change of the table: an engine entered, changed, reported load, or went.
using Change = std::variant<EngineStatus, Removed>;

/// Life of an engine: Register (STARTING, READY, DRAINING as it says) -> Heartbeat* -> Deregister, or death by silence.
/// A heartbeat whose progress stood still for stall_timeout while requests run or wait makes a READY engine STALLED;
/// it is READY again when the counter moves or the work is gone. Thread-safety: none; one loop owns it. Ownership: a
/// value. Errors: as named.
class Membership {
 public:
  explicit Membership(const Options& options) : options_(options) {}

  /// Enters an engine, or replaces what is known of the same instance; counts as a heartbeat.
  /// ALREADY_EXISTS: the name is held by another live instance (names it, and how long it has to live if it is silent:
  /// see SilenceLeft). INVALID_ARGUMENT: see Validate. RESOURCE_EXHAUSTED: max_engines.
  absl::Status Register(const EngineInfo& info, absl::Time now);
  /// True: this call of Register, or a later one of the same instance, was heard (info.registration): it is a copy.
  bool Knows(const EngineInfo& info, absl::Time now);
  /// NOT_FOUND: no such name, or another instance has it.
  absl::Status Heartbeat(const std::string& name, const std::string& instance_id, const EngineLoad& load,
                         absl::Time now);
  /// Takes the instance out; nothing happens where it is not there.
  void Deregister(const std::string& name, const std::string& instance_id);

  /// Removes whoever was silent too long.
  void Expire(absl::Time now);
  /// When Expire has something to do at the earliest; none while the table is empty.
  std::optional<absl::Time> NextDeath() const;
  /// Time until the holder of `name` is dead unless it speaks; none where nobody holds it.
  std::optional<absl::Duration> SilenceLeft(const std::string& name, absl::Time now) const;
  /// Puts every death off: for a broker that itself slept and could not hear.
  void Forgive(absl::Duration lateness);

  /// As others see it.
  std::optional<EngineStatus> Find(const std::string& name) const;
  /// All engines, by name.
  std::vector<EngineStatus> Snapshot() const;
  /// What changed since the last call, in order.
  std::vector<Change> TakeChanges();
  int64_t CountOf(EngineState state) const;

 private:
  struct Record {
    EngineInfo info;  // state as the engine says
    EngineLoad load;
    absl::Time last_heard, last_progress;
    bool stalled = false;
  };

  absl::Duration Lifetime() const { return options_.heartbeat_interval * options_.heartbeat_misses; }
  static EngineStatus StatusOf(const Record& record);
  /// True if what others see differs from `before`: then it is told.
  void TellIfChanged(const EngineStatus& before, const Record& record);

  const Options options_;
  std::map<std::string, Record> engines_;
  std::vector<Change> changes_;
};

}  // namespace swiftcache::broker::membership
