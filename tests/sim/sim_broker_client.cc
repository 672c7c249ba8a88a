// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/sim_broker_client.h"

#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace swiftcache::sim {

namespace ledger = broker::ledger;
using engine::coordinator::BrokerCall;
using engine::coordinator::LeaseEvent;
using engine::coordinator::LeaseRequest;
using engine::coordinator::LeaseResponse;
using engine::coordinator::Window;
using engine::lease::Lease;
using engine::lease::State;

namespace {

constexpr Micros kBeat = 100'000, kBackoff = 20'000;

}  // namespace

void SimBrokerClient::Start(const broker::membership::EngineInfo& info, engine::coordinator::Coordinator& coordinator) {
  info_ = info;
  coordinator_ = &coordinator;
  incarnation_.clear();
  limits_.clear();
  weights_.clear();
  calls_ = {};
  sent_.reset();
  registrations_ = 0;
  registering_ = false;
  Register();
  KeepBeating();
}

void SimBrokerClient::Call(Serve serve, std::function<void()> on_timeout, Micros timeout, bool may_repeat) {
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

void SimBrokerClient::Register() {
  if (std::exchange(registering_, true)) return;
  broker::loop::Tables::Registration registration{.info = info_, .given = {}, .limits = {}};
  registration.info.registration = ++registrations_;
  for (const Lease& lease : coordinator_->Given()) {
    registration.given.push_back(ToBrokerLease(options_.blindfold.Seen(lease)));
  }
  for (const auto& [model_name, limit] : limits_) registration.limits.push_back(limit);
  Call(
      [this, registration](SimBroker& broker) {
        const absl::Status status = broker.tables().Register(registration, broker.Now());
        return std::function<void()>([this, status, incarnation = broker.incarnation()] {
          registering_ = false;
          if (absl::IsAlreadyExists(status)) return process_.After(kBeat, [this] { Register(); });
          if (!status.ok()) {
            return sim_.Fail(absl::StrCat("registration of ", info_.instance_id, ": ", status.ToString()));
          }
          Registered(incarnation);
        });
      },
      [this] {
        registering_ = false;
        Register();
      });
}

void SimBrokerClient::Registered(const std::string& incarnation) {
  sim_.Trace([&] { return absl::StrCat(info_.instance_id, " is registered with ", incarnation); });
  incarnation_ = incarnation;
  coordinator_->OnTerms({.ttl = kTtl, .scale_down_window = kWindow});
  OpenWatch();
  calls_.Registered();
  SendNext();
}

void SimBrokerClient::SignOff() {
  Call(
      [name = info_.name, instance = info_.instance_id](SimBroker& broker) {
        broker.tables().Deregister(name, instance, broker.Now());
        return std::function<void()>([] {});
      },
      [] {});
}

void SimBrokerClient::OpenWatch() {
  const int64_t stream = ++stream_;
  Call(
      [this, stream, life = process_.life()](SimBroker& broker) {
        if (process_.life() == life) {
          broker.Watch(options_.endpoint, info_.instance_id, stream, process_,
                       [this, stream](const WatchWord& word) { Hear(word, stream); });
        }
        return std::function<void()>([] {});
      },
      [this, stream] {
        if (stream == stream_) OpenWatch();
      },
      kRpcTimeout, /*may_repeat=*/false);
}

void SimBrokerClient::WatchBroke() {
  const int64_t stream = stream_;
  process_.After(sim_.random.Between(1'000, 200'000), [this, stream] {
    if (stream == stream_) OpenWatch();  // it registers when a heartbeat is not known
  });
}

void SimBrokerClient::Hear(const WatchWord& word, int64_t stream) {
  const bool believes = options_.bug == PlantedBug::kBelieveTheBroker;
  const bool is_current = stream == stream_ && word.incarnation == incarnation_;
  if (!is_current && !believes) return;
  for (const ledger::LeaseLimit& limit : word.limits) {
    ledger::LeaseLimit& kept = limits_[limit.model_name];
    if (kept.set_at_micros <= limit.set_at_micros) kept = limit;
  }
  std::vector<Lease> leases;
  for (const Lease& lease : word.leases) leases.push_back(options_.blindfold.Blinded(lease));
  if (word.snapshot && is_current) {
    coordinator_->OnLeases(leases);
  } else {
    for (const Lease& lease : leases) coordinator_->OnLease(lease);
  }
  for (const Lease& lease : word.leases) {
    const bool ended = lease.state == State::kReleased || lease.state == State::kFenced;
    if (believes && ended && lease.borrower_instance == info_.instance_id) coordinator_->OnDonorGone(lease.id);
  }
  if (sim_.random.Chance(network_.copies)) {
    WatchWord copy = word;
    copy.snapshot = false;  // of what it does not name newer words may have told
    process_.After(sim_.random.Below(network_.latest_copy), [this, copy, stream] { Hear(copy, stream); });
  }
}

void SimBrokerClient::KeepBeating() {
  if (!incarnation_.empty() && !registering_) {
    Call(
        [this, who = caller()](SimBroker& broker) {
          const bool known = broker.tables().Heartbeat(who, {}, broker.Now()).ok();
          std::map<std::string, int64_t> weights;
          for (const ledger::BorrowerWeight& borrower : broker.tables().WeightsFor(who, broker.Now())) {
            weights[borrower.instance_id] = borrower.weight;
          }
          return std::function<void()>([this, known, weights = std::move(weights)] {
            if (!known) return Register();
            if (weights != weights_) coordinator_->OnWeights(weights_ = weights);
          });
        },
        [] {});
  }
  process_.After(kBeat, [this] { KeepBeating(); });
}

// Now and then the client, too, is late: then the coordinator waits no longer by itself.
void SimBrokerClient::RequestScaleUp(int64_t question, int64_t need_blocks) {
  const Micros timeout = absl::ToInt64Microseconds(kAdvicePatience) + (sim_.random.Chance(0.2) ? 40'000 : 0);
  Call(
      [this, who = caller(), question, need_blocks](SimBroker& broker) {
        const auto advice = broker.tables().ScaleUp(who, need_blocks, broker.Now());
        return std::function<void()>([this, question, advice] {
          if (!advice.ok()) return coordinator_->OnScaleUp(question, advice.status());
          std::vector<LeaseId> leases;
          for (const ledger::LeaseId id : *advice) leases.emplace_back(id.value());
          coordinator_->OnScaleUp(question, std::move(leases));
        });
      },
      [this, question] { coordinator_->OnScaleUp(question, absl::DeadlineExceededError("no advice in time")); },
      timeout);
}

// ---- One call after the other.

void SimBrokerClient::Report(const LeaseEvent& news) {
  const Lease& lease = news.lease;
  if (lease.state == State::kFenced) ++tally_.fenced;
  if (lease.state == State::kReleased) ++(lease.epoch == engine::kv::Epoch() ? tally_.declined : tally_.released);
  sim_.Trace([&] {
    return absl::StrCat(info_.instance_id, ": lease ", lease.id.value(), " is ", StateName(lease.state), " ",
                        news.reason);
  });
  Push(news);
}

void SimBrokerClient::Push(BrokerCall call) {
  calls_.Push(std::move(call));
  SendNext();
}

void SimBrokerClient::SendNext() {
  if (sent_.has_value()) return;
  sent_ = calls_.TakeNext();
  if (sent_.has_value()) SendAgain();
}

void SimBrokerClient::SendAgain() {
  if (incarnation_.empty()) {
    return process_.After(0, [this] { Answered(absl::UnavailableError("not registered at the broker")); });
  }
  std::visit([this](const auto& call) { Send(call); }, *sent_);
}

void SimBrokerClient::Send(const LeaseEvent& news) {
  Call(
      [this, who = caller(), lease = ToBrokerLease(options_.blindfold.Seen(news.lease))](SimBroker& broker) {
        const absl::Status status = broker.tables().ReportLease(who, lease, broker.Now());
        return std::function<void()>([this, status] { Answered(status); });
      },
      [this] { Answered(absl::DeadlineExceededError("no answer")); });
}

void SimBrokerClient::Send(const Window& window) {
  const broker::elastic::Demand demand{.used_blocks = window.used_blocks,
                                       .waiting_blocks = window.waiting_blocks,
                                       .window_max_request_tokens = window.max_request_tokens,
                                       .window_peak_blocks = window.peak_blocks};
  Call(
      [this, who = caller(), demand](SimBroker& broker) {
        const absl::Status status = broker.tables().ReportWindow(who, demand, broker.Now());
        return std::function<void()>([this, status] { Answered(status); });
      },
      [this] { Answered(absl::DeadlineExceededError("no answer")); });
}

void SimBrokerClient::Send(const LeaseRequest& request) {
  const ledger::LeaseRequest asked{.key = request.key,
                                   .want_bytes = request.want_bytes,
                                   .waiting_tokens = request.waiting_tokens,
                                   .held_bytes = request.held_bytes};
  Call(
      [this, who = caller(), asked](SimBroker& broker) {
        const auto granted = broker.tables().RequestLease(who, asked, broker.Now());
        return std::function<void()>([this, granted] {
          if (!granted.ok()) return Answered(granted.status());
          LeaseResponse response{.lendable_bytes = granted->lendable_bytes,
                                 .coming_bytes = granted->coming_bytes,
                                 .shortage = granted->shortage};
          for (const ledger::Lease& lease : granted->leases) response.offered_bytes += lease.num_bytes;
          coordinator_->OnLeaseResponse(std::move(response));
          Answered(absl::OkStatus());
        });
      },
      [this] { Answered(absl::DeadlineExceededError("no answer")); });
}

void SimBrokerClient::Answered(const absl::Status& status) {
  if (MustRepeat(*sent_, status)) return process_.After(kBackoff, [this] { SendAgain(); });
  TellFailure(*sent_, status, *coordinator_);
  sent_.reset();
  SendNext();
}

int64_t SimBrokerClient::num_reports() const {
  return calls_.num_reports() + (sent_.has_value() && std::holds_alternative<LeaseEvent>(*sent_) ? 1 : 0);
}

}  // namespace swiftcache::sim
