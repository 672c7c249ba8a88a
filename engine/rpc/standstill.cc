// SPDX-License-Identifier: Apache-2.0
#include "engine/rpc/standstill.h"

namespace swiftcache::engine::rpc {

absl::Duration Standstill::Note(const exec::EngineLoad& load, absl::Time now, absl::Duration max_gap) {
  const bool has_work = load.running_requests > 0 || load.waiting_requests > 0;
  if (!has_work || progress_ != load.progress) {
    still_ = absl::ZeroDuration();
  } else if (now - noted_at_ <= max_gap) {
    still_ += now - noted_at_;
  }
  progress_ = has_work ? std::optional(load.progress) : std::nullopt;
  noted_at_ = now;
  return still_;
}

}  // namespace swiftcache::engine::rpc
