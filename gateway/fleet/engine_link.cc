// SPDX-License-Identifier: Apache-2.0
#include "gateway/fleet/engine_link.h"

#include <algorithm>
#include <vector>

namespace swiftcache::gateway::fleet {
namespace {

void NotifyLost(const std::weak_ptr<LossObserver>& observer, const absl::Status& why) {
  if (const std::shared_ptr<LossObserver> alive = observer.lock()) alive->OnLost(why);
}

}  // namespace

int64_t EngineLink::in_flight() const {
  absl::MutexLock lock(&mutex_);
  return static_cast<int64_t>(under_way_.size());
}

void EngineLink::MarkLost(absl::Status why) {
  std::vector<std::weak_ptr<LossObserver>> observers;
  {
    absl::MutexLock lock(&mutex_);
    lost_ = why;
    for (const auto& [id, observer] : under_way_) observers.push_back(observer);
  }
  for (const auto& observer : observers) NotifyLost(observer, why);
}

void EngineLink::ClearLost() {
  absl::MutexLock lock(&mutex_);
  lost_ = absl::OkStatus();
}

void EngineLink::NoteEnd(const absl::Status& status, absl::Time now) {
  absl::MutexLock lock(&mutex_);
  const bool fails_again = absl::IsInternal(status) && failed_;
  if (absl::IsUnavailable(status) || fails_again) last_failure_ = std::max(last_failure_, now);
  if (absl::IsInternal(status) || status.ok()) failed_ = !status.ok();
}

absl::Time EngineLink::last_failure() const {
  absl::MutexLock lock(&mutex_);
  return last_failure_;
}

int64_t EngineLink::Enter(const std::weak_ptr<LossObserver>& observer) {
  absl::Status lost;
  int64_t id = 0;
  {
    absl::MutexLock lock(&mutex_);
    id = next_id_++;
    under_way_.emplace(id, observer);
    lost = lost_;
  }
  if (!lost.ok()) NotifyLost(observer, lost);
  return id;
}

void EngineLink::Leave(int64_t id) {
  absl::MutexLock lock(&mutex_);
  under_way_.erase(id);
}

}  // namespace swiftcache::gateway::fleet
