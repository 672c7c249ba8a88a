// SPDX-License-Identifier: Apache-2.0
// For how long an engine has stood still, from what it says of its load now and then.
//
//   Standstill standstill;
//   const absl::Duration still = standstill.Note(engine->Load(), clock.Now(), /*max_gap=*/absl::Seconds(3));
#pragma once

#include <cstdint>
#include <optional>

#include "absl/time/time.h"
#include "engine/exec/engine_load.h"

namespace swiftcache::engine::rpc {

/// Thread-safety: none. Ownership: a value. Errors: none.
class Standstill {
 public:
  /// How long progress has stood still while requests ran or waited. Time since the last call counts if it is at most
  /// `max_gap`: in more than that the caller itself stood still, as in a process that is suspended, and the engine may
  /// have done so with it.
  absl::Duration Note(const exec::EngineLoad& load, absl::Time now, absl::Duration max_gap);

 private:
  std::optional<int64_t> progress_;  // at the last call, if there was work
  absl::Time noted_at_;
  absl::Duration still_;
};

}  // namespace swiftcache::engine::rpc
