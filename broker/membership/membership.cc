// SPDX-License-Identifier: Apache-2.0
#include "broker/membership/membership.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace swiftcache::broker::membership {
namespace {

bool HasWork(const LoadReport& load) { return load.running_requests > 0 || load.waiting_requests > 0; }

}  // namespace

EngineStatus Membership::StatusOf(const Record& record) {
  EngineStatus status{.info = record.info, .load = record.load};
  if (record.stalled && status.info.state == EngineState::kReady) status.info.state = EngineState::kStalled;
  return status;
}

void Membership::Index(const Record& record) {
  by_last_heard_.emplace(record.last_heard, record.info.name);
  names_[record.info.instance_id] = record.info.name;
  ++counts_[StatusOf(record).info.state];
}

void Membership::Unindex(const Record& record) {
  by_last_heard_.erase({record.last_heard, record.info.name});
  const auto name = names_.find(record.info.instance_id);
  if (name != names_.end() && name->second == record.info.name) names_.erase(name);
  --counts_[StatusOf(record).info.state];
}

template <typename Update>
void Membership::Alter(Record& record, const Update& update) {
  const EngineStatus before = StatusOf(record);
  Unindex(record);
  update();
  Index(record);
  EngineStatus after = StatusOf(record);
  if (after != before) changes_.push_back(std::move(after));
}

void Membership::Remove(std::map<std::string, Record>::iterator it, bool died) {
  Unindex(it->second);
  changes_.push_back(Removed{.name = it->first, .died = died});
  engines_.erase(it);
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
    const Record& record = engines_[info.name] = {.info = info, .load = {}, .last_heard = now, .last_progress = now};
    Index(record);
    changes_.push_back(StatusOf(record));
    return absl::OkStatus();
  }
  Record& record = it->second;
  if (record.info.instance_id != info.instance_id) {
    return absl::AlreadyExistsError(
        absl::StrCat("engine name '", info.name, "' is held by live instance ", record.info.instance_id, " of model '",
                     record.info.model_name, "'", record.info.address.empty() ? "" : " at " + record.info.address,
                     ", last heard ", absl::FormatDuration(absl::Trunc(now - record.last_heard, absl::Milliseconds(1))),
                     " ago; choose another --name or stop that engine"));
  }
  Alter(record, [&] {
    record.info = info;
    record.last_heard = now;
  });
  return absl::OkStatus();
}

bool Membership::IsOldRegistration(const EngineInfo& info, absl::Time now) {
  Expire(now);
  if (left_.Contains(info.instance_id)) return true;
  const auto it = engines_.find(info.name);
  return it != engines_.end() && it->second.info.instance_id == info.instance_id && info.registration > 0 &&
         info.registration <= it->second.info.registration;
}

absl::Status Membership::Heartbeat(const std::string& name, const std::string& instance_id, const LoadReport& load,
                                   absl::Time now) {
  Expire(now);
  const auto it = engines_.find(name);
  if (it == engines_.end() || it->second.info.instance_id != instance_id) {
    return absl::NotFoundError(absl::StrCat("engine '", absl::CHexEscape(name), "' instance '",
                                            absl::CHexEscape(instance_id), "' is not registered; register again"));
  }
  Record& record = it->second;
  const bool has_work = HasWork(load);
  const bool moved = load.progress != record.load.progress;
  // The stall timeout starts with the first work: an engine that idled for an hour is not stalled by its first request.
  const bool had_work = HasWork(record.load);
  Alter(record, [&] {
    if (moved || !has_work || !had_work) record.last_progress = now;
    if (has_work) record.last_progress = std::min(record.last_progress, now - absl::Microseconds(load.still_micros));
    record.stalled = now - record.last_progress >= options_.stall_timeout;
    record.load = load;
    record.last_heard = now;
  });
  return absl::OkStatus();
}

void Membership::Deregister(const std::string& name, const std::string& instance_id) {
  const auto it = engines_.find(name);
  if (it == engines_.end() || it->second.info.instance_id != instance_id) return;
  left_.Add(instance_id);
  Remove(it, /*died=*/false);
}

void Membership::Expire(absl::Time now) {
  while (!by_last_heard_.empty() && now - by_last_heard_.begin()->first >= Lifetime()) {
    Remove(engines_.find(by_last_heard_.begin()->second), /*died=*/true);
  }
}

std::optional<absl::Time> Membership::NextExpiry() const {
  if (by_last_heard_.empty()) return std::nullopt;
  return by_last_heard_.begin()->first + Lifetime();
}

std::optional<absl::Duration> Membership::TimeUntilExpiry(const std::string& name, absl::Time now) const {
  const auto it = engines_.find(name);
  if (it == engines_.end()) return std::nullopt;
  return std::max(absl::ZeroDuration(), it->second.last_heard + Lifetime() - now);
}

void Membership::PostponeDeadlines(absl::Duration lateness) {
  by_last_heard_.clear();
  for (auto& [name, record] : engines_) {
    record.last_heard += lateness;
    record.last_progress += lateness;
    by_last_heard_.emplace(record.last_heard, name);
  }
}

std::optional<std::string> Membership::NameOf(const std::string& instance_id) const {
  const auto it = names_.find(instance_id);
  if (it == names_.end()) return std::nullopt;
  return it->second;
}

std::optional<EngineStatus> Membership::Find(const std::string& name) const {
  const auto it = engines_.find(name);
  if (it == engines_.end()) return std::nullopt;
  return StatusOf(it->second);
}

std::vector<EngineStatus> Membership::Snapshot() const {
  std::vector<EngineStatus> all;
  for (const auto& [name, record] : engines_) all.push_back(StatusOf(record));
  return all;
}

std::vector<Change> Membership::TakeChanges() { return std::exchange(changes_, {}); }

int64_t Membership::CountOf(EngineState state) const {
  const auto it = counts_.find(state);
  return it == counts_.end() ? 0 : it->second;
}

}  // namespace swiftcache::broker::membership
