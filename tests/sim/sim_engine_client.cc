// SPDX-License-Identifier: Apache-2.0
// The half of SimEngine that talks to the broker: what BrokerClient and LeaseClient do for an engine.
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/sim/sim_engine.h"

namespace swiftcache::sim {

namespace ledger = broker::ledger;
using engine::kv::Epoch;
using engine::lease::Lease;
using ledger::ReportKind;

namespace {

constexpr Micros kBeat = 100'000, kWindow = 150'000, kBackoff = 20'000;

bool IsBorrowers(ReportKind kind) { return kind == ReportKind::kActive || kind == ReportKind::kLost; }

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

// Before every watch: what it holds and what the broker believes are then the same.
void SimEngine::Register() {
  if (std::exchange(registering_, true)) return;
  std::vector<ledger::Lease> held;
  for (const Lease& lease : lent()) held.push_back(ToBrokerLease(lease));
  for (const Lease& lease : borrower_->Held()) held.push_back(ToBrokerLease(lease));
  Call(
      [this, info = Info(), held](SimBroker& broker) {
        const absl::Status status = broker.tables().Register(info, held, broker.Now());
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
          broker.Watch(options_.endpoint, stream, process_,
                       [this, stream](const WatchWord& word) { Hear(word, stream); });
        }
        return std::function<void()>([] {});
      },
      [this] { Register(); }, kRpcTimeout, /*may_repeat=*/false);
}

void SimEngine::WatchBroke() {
  const int64_t stream = stream_;
  process_.After(sim_.random.Between(1'000, 200'000), [this, stream] {
    if (stream == stream_) Register();
  });
}

void SimEngine::Hear(const WatchWord& word, int64_t stream) {
  const bool is_current = stream == stream_ && word.incarnation == incarnation_;
  if (!is_current && options_.bug != PlantedBug::kAcceptOldIncarnation) return;
  const absl::Time now = process_.LocalNow();
  std::vector<Lease> blinded;
  for (const Lease& lease : word.leases) blinded.push_back(Blinded(lease));
  if (word.snapshot && is_current) {
    donor_->OnLeaseSnapshot(blinded, now);
  } else {
    for (const Lease& lease : blinded) donor_->OnLeaseUpdate(lease, now);
  }
  for (const Lease& lease : word.leases) borrower_->OnLeaseUpdate(lease, now);
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
  const ledger::LeaseRequest request{.key = absl::StrCat(instance_, "/", ++last_request_),
                                     .want_bytes = blocks * options_.cells_per_block * kCellBytes,
                                     .waiting_tokens = blocks * 16};
  Call(
      [who = caller(), request](SimBroker& broker) {
        (void)broker.tables().RequestLease(who, request, broker.Now());  // Watch tells what comes of it
        return std::function<void()>([] {});
      },
      [] {});
}

void SimEngine::Tell(LeaseId id, ReportKind kind, Epoch epoch) {
  reports_.push_back({id, kind, epoch});
  SendReports();
}

// One at a time, in order; each until it is answered.
void SimEngine::SendReports() {
  if (reporting_ || reports_.empty() || incarnation_.empty()) return;
  reporting_ = true;
  const Report& report = reports_.front();
  const ledger::LeaseReport wire{.lease = ledger::LeaseId(report.lease.value()),
                                 .kind = report.kind,
                                 .epoch = ledger::Epoch(report.epoch.value())};
  Call(
      [this, who = caller(), wire](SimBroker& broker) {
        const absl::Status status = broker.tables().ReportLease(who, wire, broker.Now());
        return std::function<void()>([this, status] { Reported(status); });
      },
      [this] {
        reporting_ = false;
        SendReports();
      });
}

void SimEngine::Reported(const absl::Status& status) {
  if (absl::IsUnavailable(status)) {  // not registered there: the heartbeat sees to it
    reporting_ = false;
    return process_.After(kBackoff, [this] { SendReports(); });
  }
  const bool refused = absl::IsFailedPrecondition(status) && reports_.front().kind == ReportKind::kAccepted;
  DropReport(/*forgotten=*/refused || absl::IsNotFound(status));
}

void SimEngine::DropReport(bool forgotten) {
  const Report report = reports_.front();
  reports_.pop_front();
  reporting_ = false;
  if (forgotten && IsBorrowers(report.kind)) borrower_->EndedByBroker(report.lease, process_.LocalNow());
  if (forgotten && !IsBorrowers(report.kind)) donor_->BrokerForgot(report.lease, process_.LocalNow());
  SendReports();
}

}  // namespace swiftcache::sim
