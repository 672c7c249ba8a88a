// SPDX-License-Identifier: Apache-2.0
#include "broker/membership/membership.h"

#include <algorithm>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace swiftcache::broker::membership {
namespace {

bool HasWork(const LoadReport& load) { return load.running_requests > 0 || load.waiting_requests > 0; }

}  // namespace

EngineState Membership::StateOf(const Record& record) {
  return record.stalled && record.info.state == EngineState::kReady ? EngineState::kStalled : record.info.state;
}

Membership::Record* Membership::Find(const std::string& name, const std::string& instance_id) const {
  const auto it = engines_.find(name);
  return it == engines_.end() || it->second->info.instance_id != instance_id ? nullptr : it->second.get();
}

EngineStatus Membership::StatusOf(const Record& record) {
  EngineStatus status{.info = record.info, .load = record.load};
  status.info.state = StateOf(record);
  return status;
}

void Membership::Hear(Record& record, EngineState before, bool changed, absl::Time now) {
  record.last_heard = now;
  by_silence_.splice(by_silence_.end(), by_silence_, record.turn);
  const EngineState after = StateOf(record);
  --counts_[before];
  ++counts_[after];
  if (changed || after != before) changes_.push_back(StatusOf(record));
}

void Membership::Remove(Record& record, bool died) {
  const std::string name = record.info.name;
  --counts_[StateOf(record)];
  by_silence_.erase(record.turn);
  engines_.erase(name);
  changes_.push_back(Removed{.name = name, .died = died});
}

absl::Status Membership::Register(const EngineInfo& info, absl::Time now) {
  RETURN_IF_ERROR(Validate(info));
  Expire(now);
  const auto it = engines_.find(info.name);
  if (it == engines_.end()) {
    if (static_cast<int64_t>(engines_.size()) >= options_.max_engines) {
      return absl::ResourceExhaustedError(
          absl::StrCat("the broker holds ", engines_.size(), " engines, its limit; stop some"));
    }
    Record& record = *(engines_[info.name] = std::make_unique<Record>());
    record = {.info = info, .load = {}, .last_heard = now, .last_progress = now};
    record.turn = by_silence_.insert(by_silence_.end(), &record);
    ++counts_[info.state];
    changes_.push_back(StatusOf(record));
    return absl::OkStatus();
  }
  Record& record = *it->second;
  if (record.info.instance_id != info.instance_id) {
    return absl::AlreadyExistsError(
        absl::StrCat("engine name '", info.name, "' is held by live instance ", record.info.instance_id, " of model '",
                     record.info.model_name, "'", record.info.address.empty() ? "" : " at " + record.info.address,
                     ", last heard ", absl::FormatDuration(absl::Trunc(now - record.last_heard, absl::Milliseconds(1))),
                     " ago; choose another --name or stop that engine"));
  }
  const EngineState before = StateOf(record);
  const bool changed = info != record.info;
  record.info = info;
  Hear(record, before, changed, now);
  return absl::OkStatus();
}

bool Membership::IsOldRegistration(const EngineInfo& info, absl::Time now) {
  Expire(now);
  if (left_.Contains(info.instance_id)) return true;
  const Record* record = Find(info.name, info.instance_id);
  return record != nullptr && info.registration > 0 && info.registration <= record->info.registration;
}

absl::Status Membership::Heartbeat(const std::string& name, const std::string& instance_id, const LoadReport& load,
                                   absl::Time now) {
  Expire(now);
  Record* const record = Find(name, instance_id);
  if (record == nullptr) {
    return absl::NotFoundError(absl::StrCat("engine '", absl::CHexEscape(name), "' instance '",
                                            absl::CHexEscape(instance_id), "' is not registered; register again"));
  }
  const EngineState before = StateOf(*record);
  const bool changed = load != record->load;
  const bool has_work = HasWork(load);
  const bool moved = load.progress != record->load.progress;
  // The stall timeout starts with the first work: an engine that idled for an hour is not stalled by its first request.
  const bool had_work = HasWork(record->load);
  if (moved || !has_work || !had_work) record->last_progress = now;
  if (has_work) record->last_progress = std::min(record->last_progress, now - absl::Microseconds(load.still_micros));
  record->stalled = now - record->last_progress >= options_.stall_timeout;
  record->load = load;
  Hear(*record, before, changed, now);
  return absl::OkStatus();
}

void Membership::Deregister(const std::string& name, const std::string& instance_id) {
  left_.Add(instance_id);  // also where its registration is still on its way here
  Record* const record = Find(name, instance_id);
  if (record == nullptr) return;
  Remove(*record, /*died=*/false);
}

void Membership::Expire(absl::Time now) {
  while (!by_silence_.empty() && now - by_silence_.front()->last_heard >= Lifetime()) {
    Remove(*by_silence_.front(), /*died=*/true);
  }
}

std::optional<absl::Time> Membership::NextExpiry() const {
  if (by_silence_.empty()) return std::nullopt;
  return by_silence_.front()->last_heard + Lifetime();
}

std::optional<absl::Duration> Membership::TimeUntilExpiry(const std::string& name, absl::Time now) const {
  const auto it = engines_.find(name);
  if (it == engines_.end()) return std::nullopt;
  return std::max(absl::ZeroDuration(), it->second->last_heard + Lifetime() - now);
}

void Membership::PostponeDeadlines(absl::Duration lateness) {
  for (Record* record : by_silence_) {
    record->last_heard += lateness;
    record->last_progress += lateness;
  }
}

std::optional<EngineStatus> Membership::Find(const std::string& name) const {
  const auto it = engines_.find(name);
  if (it == engines_.end()) return std::nullopt;
  return StatusOf(*it->second);
}

std::vector<EngineStatus> Membership::Snapshot() const {
  std::vector<EngineStatus> all;
  for (const auto& [name, record] : engines_) all.push_back(StatusOf(*record));
  std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.info.name < b.info.name; });
  return all;
}

std::vector<Change> Membership::TakeChanges() { return std::exchange(changes_, {}); }

int64_t Membership::CountOf(EngineState state) const {
  const auto it = counts_.find(state);
  return it == counts_.end() ? 0 : it->second;
}

}  // namespace swiftcache::broker::membership
