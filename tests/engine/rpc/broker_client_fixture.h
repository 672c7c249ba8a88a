// SPDX-License-Identifier: Apache-2.0
// A whole broker in this process, and engines' clients of it.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "broker/rpc/broker_service.h"
#include "common/base/instance_token.h"
#include "common/rpc/server.h"
#include "engine/rpc/broker_client.h"
#include "tests/fakes/call_log.h"
#include "tests/fakes/held_port.h"

namespace swiftcache::engine::rpc {

namespace ledger = broker::ledger;
using broker::loop::BrokerLoop;
using broker::loop::WatchEvent;
using broker::membership::EngineState;
using broker::membership::EngineStatus;
using NameChoice = BrokerClient::NameChoice;

// After three without a word an engine is dead, and a broker that was late by one takes itself for having been suspended:
// no busy machine is that slow.
constexpr absl::Duration kHeartbeat = absl::Milliseconds(500);

// Follows a broker's table from inside the process.
class Table final : public broker::loop::Watcher {
 public:
  const std::string& name() const override { return name_; }
  const std::string& instance_id() const override { return everything_; }
  bool Offer(const WatchEvent& event) override {
    absl::MutexLock lock(&mutex_);
    if (const auto* snapshot = std::get_if<WatchEvent::Snapshot>(&event.what)) {
      for (const EngineStatus& status : snapshot->engines) engines_[status.info.name] = status;
    } else if (const auto* updated = std::get_if<EngineStatus>(&event.what)) {
      engines_[updated->info.name] = *updated;
    } else if (const auto* limit = std::get_if<broker::ledger::LeaseLimit>(&event.what)) {
      limits_.push_back(*limit);
    } else if (const auto* lease = std::get_if<broker::ledger::Lease>(&event.what)) {
      leases_.Add(absl::StrCat(ledger::StateName(lease->state), " ", lease->donor.name, " ", lease->id.value()));
    } else if (const auto* gone = std::get_if<broker::membership::Removed>(&event.what)) {
      engines_.erase(gone->name);
    }
    return true;
  }
  void Close(absl::Status) override {}
  const CallLog& leases() const { return leases_; }
  template <typename Predicate>
  bool WaitUntil(Predicate predicate) {
    absl::MutexLock lock(&mutex_);
    const auto holds = [&] { return predicate(engines_); };
    return mutex_.AwaitWithTimeout(absl::Condition(&holds), absl::Seconds(30));
  }
  bool WaitForLimits(const std::vector<broker::ledger::LeaseLimit>& limits) {
    absl::MutexLock lock(&mutex_);
    const auto told = [&] { return limits_ == limits; };
    return mutex_.AwaitWithTimeout(absl::Condition(&told), absl::Seconds(30));
  }

 private:
  const std::string name_ = "test", everything_;
  absl::Mutex mutex_;
  std::map<std::string, EngineStatus> engines_;
  std::vector<broker::ledger::LeaseLimit> limits_;
  CallLog leases_;
};

// A whole broker in this process.
struct Broker {
  explicit Broker(const std::string& incarnation, const std::string& listen = "127.0.0.1:0") {
    broker::loop::Options options{.membership = {.heartbeat_interval = kHeartbeat}, .incarnation = incarnation};
    options.new_capability = [] { return "capability"; };
    loop = *BrokerLoop::Create(options, clock, metrics);
    door = std::make_unique<broker::rpc::BrokerDoor>(*loop, broker::rpc::DoorOptions());
    auto created = RpcServer::Create({.listen = listen}, {door.get()});
    if (!created.ok()) ADD_FAILURE() << created.status();
    server = *std::move(created);
    loop->Watch(table);
  }
  ~Broker() {
    loop->Stop();
    server->Stop(clock.Now());
  }
  bool WaitForState(const std::string& name, EngineState state) {
    return table->WaitUntil([&](auto& engines) { return engines.contains(name) && engines[name].info.state == state; });
  }
  bool WaitForGone(const std::string& name) {
    return table->WaitUntil([&](auto& engines) { return !engines.contains(name); });
  }

  RealClock clock;
  Metrics metrics;
  std::shared_ptr<Table> table = std::make_shared<Table>();
  std::unique_ptr<BrokerLoop> loop;
  std::unique_ptr<broker::rpc::BrokerDoor> door;
  std::unique_ptr<RpcServer> server;
};

inline EngineDescription Description(const std::string& name) {
  return {
      .name = name,
      .model_name = "model",
      .kv = {.num_layers = 2, .num_kv_heads = 2, .head_dim = 8, .block_tokens = 16, .dtype = backend::KvDtype::kBf16},
      .num_blocks = 10,
      .max_model_len_tokens = 128,
      .model_card_hash = "cafe"};
}

constexpr absl::Duration kNobodyThere = absl::Seconds(1);  // for a broker that is to come later

/// `rpc_timeout`: Reserve waits as long for a broker that is not there; long, since a busy machine is slow to connect.
inline std::unique_ptr<BrokerClient> ClientOf(const std::string& broker, const std::string& token,
                                              absl::Duration rpc_timeout = absl::Seconds(10)) {
  return BrokerClient::Create({.broker = broker,
                               .instance_id = InstanceIdOf(token),
                               .token = token,
                               .rpc_timeout = rpc_timeout,
                               .max_reconnect_backoff = absl::Milliseconds(50)});
}

inline exec::EngineLoad NoLoad() { return {}; }

// It has the name "a", and is ready.
inline std::unique_ptr<BrokerClient> ReadyClient(const std::string& broker, const SharingDescription& sharing = {},
                                                 absl::Duration rpc_timeout = absl::Seconds(10)) {
  auto client = ClientOf(broker, "i1", rpc_timeout);
  EXPECT_EQ(client->Reserve(Description("a"), NameChoice::kExactly).value_or("none"), "a");
  client->Start();
  client->Ready("127.0.0.1:1", NoLoad, sharing);
  return client;
}

}  // namespace swiftcache::engine::rpc
