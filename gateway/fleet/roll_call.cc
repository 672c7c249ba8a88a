// SPDX-License-Identifier: Apache-2.0
#include "gateway/fleet/roll_call.h"

#include <algorithm>
#include <utility>

#include "common/log/log.h"

namespace swiftcache::gateway::fleet {

RollCall::RollCall(const Options& options, const Clock& clock, OnSilent on_silent)
    : options_(options), clock_(clock), on_silent_(std::move(on_silent)) {
  for (int i = 0; i < options_.threads; ++i) threads_.emplace_back([this] { Work(); });
}

RollCall::~RollCall() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    changed_.SignalAll();
  }
  for (std::thread& thread : threads_) thread.join();
}

void RollCall::Ask(const std::shared_ptr<EngineLink>& link, absl::Time first) {
  absl::MutexLock lock(&mutex_);
  Asked& asked = asked_[link.get()];
  asked.link = link;
  asked.next = std::min(asked.next, first);
  changed_.SignalAll();
}

void RollCall::Trust(const EngineLink& link) {
  absl::MutexLock lock(&mutex_);
  asked_.erase(&link);
}

void RollCall::Work() {
  while (const std::shared_ptr<EngineLink> link = Next()) {
    const absl::Status answer = link->client().Ping(options_.timeout);
    if (Note(*link, answer)) on_silent_(link, answer);
  }
}

std::shared_ptr<EngineLink> RollCall::Next() {
  absl::MutexLock lock(&mutex_);
  while (!stopping_) {
    absl::Time next = absl::InfiniteFuture();
    const absl::Time now = clock_.Now();
    if (std::shared_ptr<EngineLink> link = Due(now, next)) return link;
    changed_.WaitWithTimeout(&mutex_, next - now);
  }
  return nullptr;
}

// The first that is due, marked as asked; otherwise `next` says when one will be.
std::shared_ptr<EngineLink> RollCall::Due(absl::Time now, absl::Time& next) {
  for (auto it = asked_.begin(); it != asked_.end();) {
    Asked& asked = it->second;
    std::shared_ptr<EngineLink> link = asked.link.lock();
    if (link == nullptr) {
      it = asked_.erase(it);
      continue;
    }
    ++it;
    if (asked.under_way) continue;
    next = std::min(next, asked.next);
    if (asked.next > now) continue;
    asked.under_way = true;
    return link;
  }
  return nullptr;
}

bool RollCall::Note(const EngineLink& link, const absl::Status& answer) {
  absl::MutexLock lock(&mutex_);
  const auto it = asked_.find(&link);
  if (it == asked_.end()) return false;
  if (!answer.ok()) {
    asked_.erase(it);
    return true;
  }
  Asked& asked = it->second;
  if (!asked.answered) {
    LOG(WARNING) << RequestTag{{}, {}, link.model_name()} << "engine " << link.name()
                 << " answers, though the broker hears nothing of it: it goes on serving";
  }
  asked.answered = true;
  asked.under_way = false;
  asked.next = clock_.Now() + options_.interval;
  changed_.SignalAll();
  return false;
}

}  // namespace swiftcache::gateway::fleet
