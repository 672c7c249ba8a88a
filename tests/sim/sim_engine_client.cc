// SPDX-License-Identifier: Apache-2.0
// The half of SimEngine that talks to the broker: what BrokerClient and LeaseClient do for an engine.
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/sim/sim_engine.h"

namespace swiftcache::sim {

namespace ledger = broker::ledger;
using engine::lease::Lease;
using engine::lease::State;

namespace {

constexpr Micros kBeat = 100'000, kWindow = 150'000, kBackoff = 20'000;

}  // namespace

void SimEngine::Call(Serve serve, std::function<void()> on_timeout, Micros timeout, bool may_repeat) {
  const auto done = std::make_shared<bool>(false);  // by the first answer, or too late
  const auto fail = [done, on_timeout = std::move(on_timeout)] {
    if (!std::exchange(*done, true)) on_timeout();
  };
  process_.After(timeout, fail);
  const int endpoint = options_.endpoint;
  if (network_.IsCut(endpoint, SimBroker::kEndpoint)) return;
  const auto arrive = [this, done, fail, endpoint, life = process_.life(), serve = std::move(serve)] {
    SimBroker* const broker = broker_.broker;
    if (broker == nullptr) {
      if (process_.life() == life) process_.After(network_.Delay() + kBackoff, fail);
      return;
    }
    broker->process().Run([=, this] {
      const std::function<void()> answer = serve(*broker);
      if (network_.IsCut(endpoint, SimBroker::kEndpoint) || process_.life() != life) return;
      process_.After(network_.Delay(), [done, answer] {
        if (!std::exchange(*done, true)) answer();
      });
    });
  };
  sim_.At(sim_.now() + network_.Delay(), arrive);
  if (may_repeat && sim_.random.Chance(network_.copies)) {
    sim_.At(sim_.now() + network_.Delay() + sim_.random.Below(network_.latest_copy), arrive);
  }
}

broker::membership::EngineInfo SimEngine::Info() const {
  return {.name = options_.name,
          .instance_id = instance_,
          .model_name = absl::StrCat("model-", options_.endpoint % 3),
          .address = "localhost:1",
          .kv = {.num_layers = 1,
                 .num_kv_heads = 1,
                 .head_dim = 32 * options_.cells_per_block,
                 .kv_cache_dtype = "f32",
                 .block_tokens = 16,
                 .block_bytes = options_.cells_per_block * kCellBytes,
                 .num_blocks = options_.num_blocks},
          .max_model_len_tokens = 1024,
          .model_card_hash = "",
          .state = broker::membership::EngineState::kReady,
          .lease_channel = instance_,
          .node_id = "node",
          .page_bytes = kCellBytes};
}

void SimEngine::Register() {
  if (std::exchange(registering_, true)) return;
  broker::loop::Tables::Registration registration{.info = Info(), .given = {}, .limits = {}};
  registration.info.registration = ++registrations_;
  for (const Lease& lease : given()) registration.given.push_back(ToBrokerLease(lease));
  for (const auto& [model_name, limit] : limits_) registration.limits.push_back(limit);
  Call(
      [this, registration](SimBroker& broker) {
        const absl::Status status = broker.tables().Register(registration, broker.Now());
        return std::function<void()>([this, status, incarnation = broker.incarnation()] {
          registering_ = false;
          if (absl::IsAlreadyExists(status)) return process_.After(kBeat, [this] { Register(); });
          if (!status.ok()) return sim_.Fail(absl::StrCat("registration of ", instance_, ": ", status.ToString()));
          sim_.Trace([&] { return absl::StrCat(instance_, " is registered with ", incarnation); });
          incarnation_ = incarnation;
          OpenWatch();
          SendReports();
        });
      },
      [this] {
        registering_ = false;
        Register();
      });
}

void SimEngine::OpenWatch() {
  const int64_t stream = ++stream_;
  Call(
      [this, stream, life = process_.life()](SimBroker& broker) {
        if (process_.life() == life) {
          broker.Watch(options_.endpoint, instance_, stream, process_,
                       [this, stream](const WatchWord& word) { Hear(word, stream); });
        }
        return std::function<void()>([] {});
      },
      [this, stream] {
        if (stream == stream_) OpenWatch();
      },
      kRpcTimeout, /*may_repeat=*/false);
}

void SimEngine::WatchBroke() {
  const int64_t stream = stream_;
  process_.After(sim_.random.Between(1'000, 200'000), [this, stream] {
    if (stream == stream_) OpenWatch();  // it registers when a heartbeat is not known
  });
}

void SimEngine::Hear(const WatchWord& word, int64_t stream) {
  const bool believes = options_.bug == PlantedBug::kBelieveTheBroker;
  const bool is_current = stream == stream_ && word.incarnation == incarnation_;
  if (!is_current && !believes) return;
  const absl::Time now = process_.LocalNow();
  for (const ledger::LeaseLimit& limit : word.limits) {
    ledger::LeaseLimit& kept = limits_[limit.model_name];
    if (kept.set_at_micros <= limit.set_at_micros) kept = limit;
  }
  std::vector<Lease> blinded;
  for (const Lease& lease : word.leases) blinded.push_back(Blinded(lease));
  if (word.snapshot && is_current) {
    donor_->OnLeaseSnapshot(blinded, now);
  } else {
    for (const Lease& lease : blinded) donor_->OnLeaseUpdate(lease, now);
  }
  for (const Lease& lease : word.leases) {
    borrower_->OnLeaseUpdate(lease, now);
    const bool ended = lease.state == State::kReleased || lease.state == State::kFenced;
    if (believes && ended && lease.borrower_instance == instance_) borrower_->DonorGone(lease.id, now);
  }
  if (sim_.random.Chance(network_.copies)) {
    WatchWord copy = word;
    copy.snapshot = false;  // of what it does not name newer words may have told
    process_.After(sim_.random.Below(network_.latest_copy), [this, copy, stream] { Hear(copy, stream); });
  }
}

void SimEngine::KeepBeating() {
  if (!incarnation_.empty() && !registering_) {
    Call(
        [this, who = caller()](SimBroker& broker) {
          const bool known = broker.tables().Heartbeat(who, {}, broker.Now()).ok();
          return std::function<void()>([this, known] {
            if (!known) Register();
          });
        },
        [] {});
  }
  process_.After(kBeat, [this] { KeepBeating(); });
}

void SimEngine::KeepReporting() {
  const int64_t used = options_.lends ? loop_->used_blocks() : options_.num_blocks;
  const broker::elastic::Demand demand{
      .used_blocks = used, .waiting_blocks = 0, .window_max_request_tokens = 16, .window_peak_blocks = used};
  Call(
      [who = caller(), demand](SimBroker& broker) {
        (void)broker.tables().ReportWindow(who, demand, broker.Now());  // the next one comes soon
        return std::function<void()>([] {});
      },
      [] {});
  process_.After(kWindow, [this] { KeepReporting(); });
}

void SimEngine::RequestMemory(int64_t blocks) {
  if (quiet_ || sim_.now() < next_request_ || incarnation_.empty()) return;
  next_request_ = sim_.now() + 60'000;
  ledger::LeaseRequest request{.key = absl::StrCat(instance_, "/", ++last_request_),
                               .want_bytes = blocks * options_.cells_per_block * kCellBytes,
                               .waiting_tokens = blocks * 16};
  for (const Lease& lease : borrower_->Held()) request.held_bytes += lease.num_bytes;
  Call(
      [who = caller(), request](SimBroker& broker) {
        (void)broker.tables().RequestLease(who, request, broker.Now());  // Watch tells what comes of it
        return std::function<void()>([] {});
      },
      [] {});
}

void SimEngine::Tell(const Lease& lease) {
  reports_.push_back(lease);
  SendReports();
}

// One at a time, in order; each until it is answered.
void SimEngine::SendReports() {
  if (reporting_ || reports_.empty() || incarnation_.empty()) return;
  reporting_ = true;
  Call(
      [this, who = caller(), lease = ToBrokerLease(reports_.front())](SimBroker& broker) {
        const absl::Status status = broker.tables().ReportLease(who, lease, broker.Now());
        return std::function<void()>([this, status] { Reported(status); });
      },
      [this] {
        reporting_ = false;
        SendReports();
      });
}

void SimEngine::Reported(const absl::Status& status) {
  reporting_ = false;
  if (absl::IsUnavailable(status)) {  // not registered there: the heartbeat sees to it
    return process_.After(kBackoff, [this] { SendReports(); });
  }
  const Lease lease = reports_.front();
  reports_.pop_front();
  if (!status.ok()) donor_->Refused(lease.id, status.ToString(), process_.LocalNow());
  SendReports();
}

}  // namespace swiftcache::sim
