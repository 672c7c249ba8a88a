// SPDX-License-Identifier: Apache-2.0
// The table of engines as a pure value: which are registered, dead or stalled. Time is handed in.
//
//   Membership table({.heartbeat_interval = absl::Seconds(1)});
//   RETURN_IF_ERROR(table.Register(info, clock.Now()));
//   table.Expire(clock.Now());
//   for (const Change& change : table.TakeChanges()) Publish(change);
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "broker/membership/engine_status.h"
#include "common/base/recent_ids.h"
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
  bool died = false;  // false: it deregistered
};
/// One change of the table: an engine that is new, has changed or has reported load, or one that was removed.
using Change = std::variant<EngineStatus, Removed>;

/// Life of an engine: Register (in the state that it names: STARTING, READY or DRAINING), heartbeats, then Deregister,
/// after which an instance does not come back, or death after heartbeat_misses intervals without a call. A READY engine
/// whose progress counter stands still for stall_timeout while requests run or wait is STALLED; it is READY again when
/// the counter moves or the work is gone. For how long it stood still before this table knew it the engine says itself.
/// Thread-safety: none; one loop owns it. Ownership: a value. Errors: as named.
class Membership {
 public:
  explicit Membership(const Options& options) : options_(options) {}

  /// Adds an engine, or replaces what is known of the same instance; counts as a heartbeat.
  /// ALREADY_EXISTS: the name is held by another live instance, which the message names (see TimeUntilExpiry).
  /// INVALID_ARGUMENT: see Validate. RESOURCE_EXHAUSTED: max_engines.
  absl::Status Register(const EngineInfo& info, absl::Time now);
  /// Whether this call of Register, or a later one of the same instance, was processed already (info.registration), or
  /// the instance has deregistered: a late copy would keep an engine in the table that is gone.
  bool IsOldRegistration(const EngineInfo& info, absl::Time now);
  /// NOT_FOUND: no such name, or another instance has it.
  absl::Status Heartbeat(const std::string& name, const std::string& instance_id, const LoadReport& load,
                         absl::Time now);
  /// Removes the instance; does nothing if it is not there.
  void Deregister(const std::string& name, const std::string& instance_id);

  /// Removes engines that sent nothing for too long.
  void Expire(absl::Time now);
  /// The earliest time at which Expire may have something to do; none while the table is empty.
  std::optional<absl::Time> NextExpiry() const;
  /// Time until the holder of `name` expires if it sends no heartbeat; none if the name is free.
  std::optional<absl::Duration> TimeUntilExpiry(const std::string& name, absl::Time now) const;
  /// Moves every expiry back by `lateness`: for a broker that was itself suspended and could receive nothing.
  void PostponeDeadlines(absl::Duration lateness);

  /// The engine with its state as watchers see it, STALLED included.
  std::optional<EngineStatus> Find(const std::string& name) const;
  /// All engines, by name.
  std::vector<EngineStatus> Snapshot() const;
  /// What changed since the last call, in order.
  std::vector<Change> TakeChanges();
  int64_t CountOf(EngineState state) const;

 private:
  struct Record {
    EngineInfo info;  // with the state that the engine reported
    LoadReport load;
    absl::Time last_heard, last_progress;
    bool stalled = false;
    std::list<Record*>::iterator turn;  // in by_silence_
  };

  absl::Duration Lifetime() const { return options_.heartbeat_interval * options_.heartbeat_misses; }
  static EngineState StateOf(const Record& record);
  static EngineStatus StatusOf(const Record& record);
  Record* Find(const std::string& name, const std::string& instance_id) const;
  /// After what it said was put into the record, which was in state `before`.
  void Hear(Record& record, EngineState before, bool changed, absl::Time now);
  void Remove(Record& record, bool died);

  const Options options_;
  absl::flat_hash_map<std::string, std::unique_ptr<Record>> engines_;  // by name
  std::list<Record*> by_silence_;                                      // the longest first
  std::map<EngineState, int64_t> counts_;                              // as watchers see them
  RecentIds<std::string> left_{kMaxEngines};                           // instances that deregistered
  std::vector<Change> changes_;
};

}  // namespace swiftcache::broker::membership
