// SPDX-License-Identifier: Apache-2.0
#include "broker/loop/broker_loop.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "common/log/log.h"

namespace swiftcache::broker::loop {

using membership::EngineState;
using membership::EngineStatus;
using membership::Removed;

BrokerLoop::Counters::Counters(Metrics& metrics)
    : registrations(metrics.Counter("swiftcache_broker_registrations_total", "Registrations accepted")),
      deaths(metrics.Counter("swiftcache_broker_deaths_total", "Engines removed for missed heartbeats")),
      heartbeats(metrics.Counter("swiftcache_broker_heartbeats_total", "Heartbeats accepted")),
      dropped_watchers(
          metrics.Counter("swiftcache_broker_watchers_dropped_total", "Watchers dropped for being too slow")),
      watchers(metrics.Gauge("swiftcache_broker_watchers", "Streams that follow the table")) {
  for (const EngineState state :
       {EngineState::kStarting, EngineState::kReady, EngineState::kDraining, EngineState::kStalled}) {
    engines[state] = &metrics.Gauge("swiftcache_broker_engines", "Engines registered, by state",
                                    {{"state", membership::StateName(state)}});
  }
}

absl::StatusOr<std::unique_ptr<BrokerLoop>> BrokerLoop::Create(const Options& options, const Clock& clock,
                                                               Metrics& metrics) {
  if (options.incarnation.empty() || !options.new_capability || options.ledger.max_lease_bytes < 0 ||
      options.ledger.elastic.window <= absl::ZeroDuration() || options.ledger.elastic.headroom_percent < 0 ||
      options.ledger.elastic.headroom_percent > 100 || options.lease_ttl <= absl::ZeroDuration() ||
      options.queue_capacity < 1 || options.max_watchers < 1 || options.membership.heartbeat_misses < 1 ||
      options.membership.heartbeat_interval <= absl::ZeroDuration() ||
      options.membership.stall_timeout <= absl::ZeroDuration() || options.membership.max_engines < 1 ||
      options.membership.max_engines > membership::kMaxEngines) {
    return absl::InvalidArgumentError(absl::StrCat(
        "broker options: wanted an incarnation, a source of capabilities, a headroom of 0 to 100 percent, max_engines "
        "of 1 to ",
        membership::kMaxEngines,
        ", heartbeat_interval, heartbeat_misses, stall_timeout, queue_capacity, max_watchers, the elastic window and "
        "lease_ttl above zero, and max_lease_bytes not below"));
  }
  return std::make_unique<BrokerLoop>(options, clock, metrics);
}

BrokerLoop::BrokerLoop(const Options& options, const Clock& clock, Metrics& metrics)
    : options_(options),
      clock_(clock),
      counters_(metrics),
      mailbox_(options.queue_capacity),
      tables_({.membership = options.membership,
               .ledger = options.ledger,
               .incarnation = options.incarnation,
               .new_capability = options.new_capability}),
      lease_metrics_(metrics),
      last_seen_(clock.Now()),
      thread_([this] { Run(); }) {}

BrokerLoop::~BrokerLoop() { Stop(); }

void BrokerLoop::Stop() {
  mailbox_.Close();
  if (thread_.joinable()) thread_.join();
}

absl::Status BrokerLoop::Refusal() const {
  if (mailbox_.closed()) return absl::UnavailableError("the broker is stopping; try again");
  return absl::ResourceExhaustedError(
      absl::StrCat("the broker's queue of ", options_.queue_capacity, " messages is full; try again"));
}

void BrokerLoop::Register(Tables::Registration registration, RegisterReply reply) {
  Post([&reply](absl::Status why) { reply(std::move(why), std::nullopt); },
       [this, registration = std::move(registration), reply] {
         const absl::Status status = tables_.Register(registration, Now());
         std::optional<absl::Duration> retry_after;
         if (status.ok()) counters_.registrations.Increment();
         if (absl::IsAlreadyExists(status)) {
           retry_after = tables_.engines().TimeUntilExpiry(registration.info.name, Now());
         }
         reply(status, retry_after);
       });
}

void BrokerLoop::Heartbeat(Caller caller, membership::LoadReport load, HeartbeatReply reply) {
  Post(reply, [=, this] {
    const absl::Status status = tables_.Heartbeat(caller, load, Now());
    if (!status.ok()) return reply(status);
    counters_.heartbeats.Increment();
    reply(tables_.WeightsFor(caller, Now()));
  });
}

void BrokerLoop::Deregister(std::string name, std::string instance_id, Reply reply) {
  Post(reply, [=, this] {
    tables_.Deregister(name, instance_id, Now());
    reply(absl::OkStatus());
  });
}

void BrokerLoop::Watch(std::shared_ptr<Watcher> watcher) {
  Post([&watcher](absl::Status why) { watcher->Close(std::move(why)); },
       [=, this] {
         const absl::Status room = CheckRoomFor(*watcher);
         room.ok() ? StartWatching(watcher) : watcher->Close(room);
       });
}

absl::Status BrokerLoop::CheckRoomFor(const Watcher& watcher) const {
  if (of_engines_.contains(watcher.instance_id())) return absl::OkStatus();  // it takes that one's place
  const bool of_everything = watcher.instance_id().empty();
  const size_t there = of_everything ? watchers_.size() : of_engines_.size();
  const size_t most = of_everything ? options_.max_watchers : static_cast<size_t>(options_.membership.max_engines);
  if (there < most) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(there, of_everything ? " watchers of everything" : " engines",
                                                   " follow, the most; end some, or watch again later"));
}

void BrokerLoop::StartWatching(const std::shared_ptr<Watcher>& watcher) {
  LOG(INFO) << "watcher " << watcher->name() << " follows";
  const std::string& instance_id = watcher->instance_id();
  if (!watcher->Offer(tables_.Snapshot(instance_id))) {
    return watcher->Close(absl::ResourceExhaustedError("the snapshot found no room; watch again"));
  }
  counters_.watchers.Increment();
  if (instance_id.empty()) return watchers_.push_back(watcher);
  const std::shared_ptr<Watcher> before = std::exchange(of_engines_[instance_id], watcher);
  if (before == nullptr) return;
  counters_.watchers.Decrement();
  before->Close(absl::AbortedError("the engine has opened another Watch, which goes on in this one's place"));
}

void BrokerLoop::Unwatch(std::shared_ptr<Watcher> watcher) {
  mailbox_.Push([=, this] {
    const auto of_engine = of_engines_.find(watcher->instance_id());
    if (of_engine != of_engines_.end() && of_engine->second == watcher) {
      of_engines_.erase(of_engine);
      return counters_.watchers.Decrement();
    }
    counters_.watchers.Decrement(static_cast<double>(std::erase(watchers_, watcher)));
  });
}

void BrokerLoop::Run() {
  bool closed = false;
  while (!closed) {
    const absl::Duration wait = UntilNextDeadline();
    planned_wake_ = last_seen_ + wait;
    closed = mailbox_.closed();  // read before the last take: nothing is left inside
    for (const Message& message : mailbox_.TakeAll(wait)) {
      message();
      PublishChanges();
    }
    tables_.Tick(Now());
    PublishChanges();
    UpdateGauges();
  }
  const absl::Status stopping = absl::UnavailableError("the broker is stopping; watch again");
  for (const auto& watcher : watchers_) watcher->Close(stopping);
  for (const auto& [instance_id, watcher] : of_engines_) watcher->Close(stopping);
  watchers_.clear();
  of_engines_.clear();
}

absl::Duration BrokerLoop::UntilNextDeadline() {
  const absl::Time now = Now();
  const absl::Time next = tables_.NextDeadline();
  if (next == absl::InfiniteFuture()) return absl::InfiniteDuration();
  return std::clamp(next - now, absl::Milliseconds(1), heartbeat_interval());
}

// A broker that was suspended, or got no CPU time, could not receive heartbeats meanwhile. So when the time jumps while
// the loop was not waiting, all deadlines are postponed by the jump. It waits for an interval at most, and not until
// the first of them is due: a suspension that ends by then would look like the wait.
absl::Time BrokerLoop::Now() {
  const absl::Time now = clock_.Now();
  if (now - std::max(last_seen_, planned_wake_) > heartbeat_interval()) {
    LOG(WARNING) << "the broker received nothing for " << absl::FormatDuration(now - last_seen_)
                 << ", later than it meant to wake; deadlines are postponed by as much";
    tables_.PostponeDeadlines(now - last_seen_);
  }
  last_seen_ = now;
  planned_wake_ = absl::InfinitePast();
  return now;
}

void BrokerLoop::PublishChanges() {
  for (const TableChange& entry : tables_.TakeChanges()) {
    if (const auto* lease = std::get_if<ledger::Lease>(&entry.event.what)) {
      lease_metrics_.Note(*lease, entry.before);
    } else if (const auto* status = std::get_if<EngineStatus>(&entry.event.what)) {
      LogState(status->info);
    } else if (const auto* removed = std::get_if<Removed>(&entry.event.what)) {
      Forget(*removed);
    }
    Publish(entry.event);
  }
}

void BrokerLoop::Publish(const WatchEvent& event) {
  std::erase_if(watchers_, [&](const auto& watcher) { return !Tell(*watcher, event); });
  if (const auto* lease = std::get_if<ledger::Lease>(&event.what)) {
    PublishToEngine(lease->donor.instance_id, event);
    PublishToEngine(lease->borrower.instance_id, event);
  } else if (std::holds_alternative<ledger::LeaseLimit>(event.what)) {
    std::erase_if(of_engines_, [&](const auto& engine) { return !Tell(*engine.second, event); });
  }
}

void BrokerLoop::PublishToEngine(const std::string& instance_id, const WatchEvent& event) {
  const auto it = of_engines_.find(instance_id);
  if (it != of_engines_.end() && !Tell(*it->second, event)) of_engines_.erase(it);
}

bool BrokerLoop::Tell(Watcher& watcher, const WatchEvent& event) {
  if (watcher.Offer(event)) return true;
  LOG(WARNING) << "watcher " << watcher.name() << " is too slow and dropped";
  counters_.dropped_watchers.Increment();
  counters_.watchers.Decrement();
  watcher.Close(absl::ResourceExhaustedError("the reader is too slow for the changes; watch again"));
  return false;
}

void BrokerLoop::Forget(const Removed& engine) {
  logged_states_.erase(engine.name);
  lease_metrics_.EngineRemoved(engine.name);
  if (engine.died) counters_.deaths.Increment();
  LOG(INFO) << "engine " << engine.name << (engine.died ? " died: no heartbeat" : " took its leave");
}

void BrokerLoop::LogState(const membership::EngineInfo& info) {
  const auto [it, entered] = logged_states_.try_emplace(info.name, info.state);
  if (!entered && it->second == info.state) return;
  it->second = info.state;
  LOG(INFO) << "engine " << info.name << " is " << membership::StateName(info.state) << ", model=" << info.model_name
            << " address=" << (info.address.empty() ? "none yet" : info.address) << " instance=" << info.instance_id;
}

void BrokerLoop::UpdateGauges() {
  for (const auto& [state, gauge] : counters_.engines)
    gauge->Set(static_cast<double>(tables_.engines().CountOf(state)));
}

}  // namespace swiftcache::broker::loop
