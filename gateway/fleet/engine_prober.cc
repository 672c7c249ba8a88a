// SPDX-License-Identifier: Apache-2.0
#include "gateway/fleet/engine_prober.h"

#include <algorithm>
#include <utility>

#include "common/log/log.h"

namespace swiftcache::gateway::fleet {

EngineProber::EngineProber(const Options& options, const Clock& clock, OnNoResponse on_no_response)
    : options_(options), clock_(clock), on_no_response_(std::move(on_no_response)) {
  for (int i = 0; i < options_.threads; ++i) threads_.emplace_back([this] { Work(); });
}

EngineProber::~EngineProber() {
  {
    TimedMutexLock lock(&mutex_);
    stopping_ = true;
    ++changes_;
  }
  for (std::thread& thread : threads_) thread.join();
}

void EngineProber::StartProbing(const std::shared_ptr<EngineLink>& link, absl::Time first) {
  TimedMutexLock lock(&mutex_);
  Probed& probed = probed_[link.get()];
  probed.link = link;
  probed.next = std::min(probed.next, first);
  ++changes_;
}

void EngineProber::StopProbing(const EngineLink& link) {
  TimedMutexLock lock(&mutex_);
  probed_.erase(&link);
}

void EngineProber::Work() {
  while (const std::shared_ptr<EngineLink> link = AwaitDueProbe()) {
    const absl::Status response = link->client().Ping(options_.timeout);
    if (HandleResponse(*link, response)) on_no_response_(link, response);
  }
}

std::shared_ptr<EngineLink> EngineProber::AwaitDueProbe() {
  TimedMutexLock lock(&mutex_);
  while (!stopping_) {
    absl::Time next = absl::InfiniteFuture();
    const absl::Time now = clock_.Now();
    if (std::shared_ptr<EngineLink> link = DueProbe(now, next)) return link;
    const auto changed = [this, seen = changes_]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return changes_ != seen; };
    mutex_.AwaitWithTimeout(absl::Condition(&changed), next - now);
  }
  return nullptr;
}

// Returns the engine whose ping has been due for longest and marks the ping as under way; otherwise sets `next` to the
// time at which one is due.
std::shared_ptr<EngineLink> EngineProber::DueProbe(absl::Time now, absl::Time& next) {
  std::erase_if(probed_, [](const auto& entry) { return entry.second.link.expired(); });
  Probed* first = nullptr;
  for (auto& [address, probed] : probed_) {
    if (!probed.under_way && (first == nullptr || probed.next < first->next)) first = &probed;
  }
  if (first == nullptr) return nullptr;
  next = first->next;
  if (next > now) return nullptr;
  first->under_way = true;
  return first->link.lock();
}

bool EngineProber::HandleResponse(const EngineLink& link, const absl::Status& response) {
  TimedMutexLock lock(&mutex_);
  const auto it = probed_.find(&link);
  if (it == probed_.end()) return false;
  Probed& probed = it->second;
  const bool silent = absl::IsDeadlineExceeded(response);
  probed.silent = silent ? probed.silent + 1 : 0;
  if (silent && probed.silent < options_.silent_pings) {
    probed.under_way = false;  // and due: before those that became due after it
    ++changes_;
    return false;
  }
  if (!response.ok()) {
    probed_.erase(it);
    return true;
  }
  if (!probed.answered) {
    LOG(WARNING) << RequestTag{{}, {}, link.model_name()} << "engine " << link.name()
                 << " answers, though the broker hears nothing of it: it goes on serving";
  }
  probed.answered = true;
  probed.under_way = false;
  probed.next = clock_.Now() + options_.interval;
  ++changes_;
  return false;
}

}  // namespace swiftcache::gateway::fleet
