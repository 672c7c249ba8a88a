// SPDX-License-Identifier: Apache-2.0
#include "gateway/fleet/card_store.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/log/log.h"

namespace swiftcache::gateway::fleet {
namespace {

// The hash determines the card: one that cannot be used now cannot be used later.
bool IsFinal(const absl::Status& status) {
  return status.ok() || absl::IsInvalidArgument(status) || absl::IsUnimplemented(status);
}

void LogOutcome(const EngineLink& engine, const absl::StatusOr<std::shared_ptr<const ModelText>>& text) {
  const RequestTag tag{{}, {}, engine.model_name()};
  if (!text.ok()) {
    LOG(ERROR) << tag << "model card of engine " << engine.name() << ": " << text.status();
    return;
  }
  LOG(INFO) << tag << "model card ready, from engine " << engine.name() << ", vocabulary " << (*text)->vocab_size();
  if (!(*text)->chat_status().ok()) {
    LOG(ERROR) << tag << "chat requests will be refused, completions work: " << (*text)->chat_status().message();
  }
}

}  // namespace

CardStore::CardStore(const Options& options, const Clock& clock) : options_(options), clock_(clock) {
  for (int i = 0; i < options_.threads; ++i) threads_.emplace_back([this] { Work(); });
}

CardStore::~CardStore() {
  {
    TimedMutexLock lock(&mutex_);
    stopping_ = true;
    ++changes_;
  }
  for (std::thread& thread : threads_) thread.join();
}

void CardStore::SetWanted(Wanted wanted) {
  TimedMutexLock lock(&mutex_);
  for (const auto& [hash, engines] : wanted) slots_[hash];
  for (auto& [hash, slot] : slots_) {
    std::vector<Source> sources;
    for (std::shared_ptr<EngineLink>& engine : wanted[hash]) {
      const auto known = std::ranges::find(slot.sources, engine, &Source::engine);
      sources.push_back(known != slot.sources.end() ? *known : Source{std::move(engine)});
    }
    slot.sources = std::move(sources);
  }
  DropUnused();
  ++changes_;
}

void CardStore::DropUnused() {
  int64_t unused = std::count_if(slots_.begin(), slots_.end(), [](const auto& s) { return s.second.sources.empty(); });
  for (auto it = slots_.begin(); it != slots_.end();) {
    const Slot& slot = it->second;
    bool useless = !slot.text.ok() || unused > options_.kept_unused;
    if (slot.sources.empty() && useless) {
      it = slots_.erase(it);
      --unused;
    } else {
      ++it;
    }
  }
}

absl::StatusOr<std::shared_ptr<const ModelText>> CardStore::Text(const std::string& hash) const {
  TimedMutexReadLock lock(&mutex_);
  auto it = slots_.find(hash);
  if (it == slots_.end()) return absl::UnavailableError("no engine offers the model's card yet");
  return it->second.text;
}

bool CardStore::HasTriedAll() const {
  TimedMutexReadLock lock(&mutex_);
  return std::ranges::all_of(slots_, [](const auto& s) { return s.second.sources.empty() || s.second.tried; });
}

void CardStore::Work() {
  while (std::optional<Job> job = NextJob()) {
    Keep(*job, Load(*job));
    if (options_.on_outcome) options_.on_outcome();
  }
}

std::optional<CardStore::Job> CardStore::NextJob() {
  TimedMutexLock lock(&mutex_);
  while (!stopping_) {
    absl::Time next = absl::InfiniteFuture();
    const absl::Time now = clock_.Now();
    if (std::optional<Job> job = DueJob(now, next)) return job;
    const auto changed = [this, seen = changes_]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return changes_ != seen; };
    mutex_.AwaitWithTimeout(absl::Condition(&changed), next - now);
  }
  return std::nullopt;
}

// Returns a fetch that is due, and marks it as under way; otherwise sets `next` to the time at which one is due.
std::optional<CardStore::Job> CardStore::DueJob(absl::Time now, absl::Time& next) {
  for (auto& [hash, slot] : slots_) {
    const auto asked_first = [](const Source& source) { return source.loading && source.failures == 0; };
    if (IsFinal(slot.text.status()) || std::ranges::any_of(slot.sources, asked_first)) continue;
    for (Source& source : slot.sources) {
      if (source.loading) continue;
      if (source.next_attempt <= now) {
        source.loading = true;
        return Job{hash, source.engine};
      }
      next = std::min(next, source.next_attempt);
    }
  }
  return std::nullopt;
}

absl::StatusOr<std::shared_ptr<const ModelText>> CardStore::Load(const Job& job) const {
  ASSIGN_OR_RETURN(ModelCard card, job.engine->client().FetchModelCard(options_.card_timeout));
  return ModelText::Create(std::move(card));
}

void CardStore::Keep(const Job& job, absl::StatusOr<std::shared_ptr<const ModelText>> text) {
  LogOutcome(*job.engine, text);
  TimedMutexLock lock(&mutex_);
  Slot& slot = slots_[job.hash];
  slot.tried = true;
  if (const auto source = std::ranges::find(slot.sources, job.engine, &Source::engine); source != slot.sources.end()) {
    source->loading = false;
    source->next_attempt = clock_.Now() + Backoff(source->failures++);
  }
  if (!IsFinal(slot.text.status())) slot.text = std::move(text);  // or another engine was asked meanwhile
  DropUnused();
  ++changes_;
}

absl::Duration CardStore::Backoff(int64_t failures) const {
  return std::min(options_.max_backoff, options_.min_backoff * (int64_t{1} << std::min<int64_t>(failures, 20)));
}

}  // namespace swiftcache::gateway::fleet
