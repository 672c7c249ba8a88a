// SPDX-License-Identifier: Apache-2.0
// A relay over engines in memory, and a sink that remembers what it got.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "gateway/fleet/fleet.h"
#include "gateway/relay/relay_impl.h"
#include "tests/fakes/fake_engine_client.h"

namespace swiftcache::gateway {

/// Remembers events; Wait returns the status once it has ended.
class CollectingSink final : public relay::GenerateSink {
 public:
  void OnEvent(relay::GenerateEvent event) override {
    absl::MutexLock lock(&mutex_);
    EXPECT_FALSE(done_.has_value()) << "event after the end";
    events_.push_back(std::move(event));
  }
  void OnDone(absl::Status status) override {
    absl::MutexLock lock(&mutex_);
    EXPECT_FALSE(done_.has_value()) << "a second end";
    done_ = std::move(status);
  }
  absl::Status Wait() {
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(this, &CollectingSink::DoneLocked));
    return *done_;
  }
  void WaitEvents(size_t count) {
    absl::MutexLock lock(&mutex_);
    wanted_ = count;
    mutex_.Await(absl::Condition(this, &CollectingSink::EnoughLocked));
  }
  std::vector<relay::GenerateEvent> events() const {
    absl::MutexLock lock(&mutex_);
    return events_;
  }
  std::string Text(int32_t index = 0) const {
    std::string text;
    for (const relay::GenerateEvent& event : events()) {
      if (event.index == index) text += event.text;
    }
    return text;
  }
  std::optional<relay::GenerateEvent> Last(int32_t index = 0) const {
    std::optional<relay::GenerateEvent> last;
    for (relay::GenerateEvent& event : events()) {
      if (event.index == index) last = std::move(event);
    }
    return last;
  }

 private:
  bool DoneLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return done_.has_value(); }
  bool EnoughLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return events_.size() >= wanted_; }

  mutable absl::Mutex mutex_;
  std::vector<relay::GenerateEvent> events_ ABSL_GUARDED_BY(mutex_);
  size_t wanted_ ABSL_GUARDED_BY(mutex_) = 0;
  std::optional<absl::Status> done_ ABSL_GUARDED_BY(mutex_);
};

class RelayFixture : public ::testing::Test {
 protected:
  RelayFixture() {
    fleet_ = *fleet::Fleet::Create(
        {.cards = {.min_backoff = absl::Milliseconds(1)},
         .prober = {.interval = absl::Milliseconds(1)},
         .suspected = absl::Hours(1)},  // however slow the machine is
        [this](const fleet::EngineInfo& info) { return engines_[info.name].NewClient(); }, clock_);
    relay_ = *relay::RelayImpl::Create({.limits = {}, .id_prefix = "test"}, *fleet_, clock_, metrics_);
  }

  static fleet::EngineStatus Ready(const std::string& engine, const std::string& model = "m") {
    return {.info = {.name = engine,
                     .instance_id = engine + "-1",
                     .model_name = model,
                     .address = "memory:" + engine,
                     .max_model_len_tokens = 100,
                     .model_card_hash = "hash-of-" + model,
                     .state = fleet::EngineState::kReady},
            .load = {}};
  }

  /// Enters READY engines of the model "m" and waits until its card is there.
  void Serve(const std::vector<std::string>& engines) {
    std::vector<fleet::EngineStatus> table;
    for (const std::string& engine : engines) table.push_back(Ready(engine));
    fleet_->OnSnapshot("broker-1", table);
    WaitForText("m");
  }

  void WaitForText(const std::string& model) {
    while (!fleet_->Find(model)->text.ok()) std::this_thread::yield();
  }

  static relay::GenerateRequest Prompt(const std::string& text) {
    relay::GenerateRequest request;
    request.model = "m";
    request.input = text;
    return request;
  }

  /// Runs a request to its end.
  absl::Status Run(relay::GenerateRequest request) {
    sink_ = std::make_shared<CollectingSink>();
    auto call = relay_->Generate(std::move(request), sink_);
    return call.ok() ? sink_->Wait() : call.status();
  }

  /// `clients` at once send `requests` each, one after the other, and cancel some, while this thread calls
  /// meanwhile(0), meanwhile(1), ...: each request ends exactly once, and in the end none is running. Stops the relay.
  void ExpectEveryRequestEndsOnce(int clients, int requests, const std::function<void(int)>& meanwhile) {
    std::atomic<int> busy = clients;
    std::vector<std::thread> threads;
    for (int client = 0; client < clients; ++client) {
      threads.emplace_back([this, client, requests, &busy] {
        for (int i = 0; i < requests; ++i) SendAndWait(/*cancel=*/i % 5 == client);
        --busy;
      });
    }
    for (int i = 0; busy > 0; ++i) {
      meanwhile(i);
      std::this_thread::yield();
    }
    for (std::thread& thread : threads) thread.join();
    relay_->Stop(clock_.Now() + absl::Seconds(60));
    EXPECT_THAT(metrics_.Serialize(), ::testing::HasSubstr("swiftcache_gateway_running_requests 0"));
  }

  const RealClock clock_;
  Metrics metrics_;
  std::map<std::string, fakes::FakeEngine> engines_;
  std::unique_ptr<fleet::Fleet> fleet_;
  std::unique_ptr<relay::RelayImpl> relay_;
  std::shared_ptr<CollectingSink> sink_;

 private:
  // To its end, which the sink refuses to hear twice.
  void SendAndWait(bool cancel) {
    auto sink = std::make_shared<CollectingSink>();
    auto call = relay_->Generate(Prompt("x"), sink);
    if (!call.ok()) return;
    if (cancel) (*call)->Cancel(relay::ClientGone());
    const absl::Status status = sink->Wait();
    EXPECT_TRUE(status.ok() || absl::IsUnavailable(status) || absl::IsCancelled(status)) << status;
  }
};

}  // namespace swiftcache::gateway
