// SPDX-License-Identifier: Apache-2.0
// Gateway rooms and two engines in one process over in-memory doors: what ThreadSanitizer can see whole.
#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "engine/backend/cpu/cpu_device.h"
#include "engine/exec/engine.h"
#include "engine/loader/checkpoint.h"
#include "engine/models/create_model.h"
#include "gateway/fleet/fleet.h"
#include "gateway/relay/relay_impl.h"
#include "tests/fakes/in_memory_engine_client.h"
#include "tests/gateway/text/spec_from_loader.h"

namespace swiftcache {
namespace {

namespace fleet = gateway::fleet;
namespace relay = gateway::relay;

// Collects one request; may cancel it after some tokens.
class Client final : public relay::GenerateSink {
 public:
  void OnEvent(relay::GenerateEvent event) override {
    tokens.insert(tokens.end(), event.token_ids.begin(), event.token_ids.end());
  }
  void OnDone(absl::Status status) override {
    result = std::move(status);
    done.Notify();
  }
  std::vector<int32_t> tokens;
  absl::Status result;
  absl::Notification done;
};

class InMemoryCluster : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : {"one", "two"}) AddEngine(name);
    fleet_ = *fleet::Fleet::Create(
        {}, [this](const fleet::EngineInfo& info) { return MakeClient(info); }, clock_);
    relay_ = *relay::RelayImpl::Create({}, *fleet_, clock_, gateway_metrics_);
    std::vector<fleet::EngineStatus> table;
    for (const auto& engine : engines_) table.push_back(Status(engine.name));
    fleet_->OnSnapshot("incarnation", table);
    absl::Mutex mutex;
    absl::MutexLock lock(&mutex);
    for (int i = 0; i < 1000 && (relay_->ListModels()->empty() || !relay_->Tokenize("tiny", "x", false).ok()); ++i) {
      mutex.AwaitWithTimeout(absl::Condition(
                                 +[](int*) { return false; }, &i),
                             absl::Milliseconds(10));
    }
  }
  void TearDown() override {
    relay_->Stop(clock_.Now() + absl::Seconds(10));
    for (auto& engine : engines_) engine.engine->ShutDown(clock_.Now());
  }

  relay::GenerateRequest Greedy(int seed) {
    std::mt19937 random(seed);
    std::vector<int32_t> prompt(1 + random() % 60);
    for (int32_t& id : prompt) id = 20 + random() % 400;
    relay::GenerateRequest request{.model = "tiny", .input = prompt};
    request.sampling.temperature = 0.0f;
    request.sampling.max_tokens = 1 + random() % 24;
    request.sampling.ignore_eos = true;
    return request;
  }

  std::shared_ptr<Client> Run(relay::GenerateRequest request, bool cancel = false) {
    auto client = std::make_shared<Client>();
    auto call = relay_->Generate(std::move(request), client);
    if (!call.ok()) {
      client->OnDone(call.status());
      return client;
    }
    if (cancel) (*call)->Cancel(gateway::relay::ClientGone());
    client->done.WaitForNotification();
    return client;
  }

  struct Running {
    std::string name;
    std::unique_ptr<Metrics> metrics;
    std::unique_ptr<engine::exec::Engine> engine;
  };

  void AddEngine(const std::string& name) {
    auto checkpoint = engine::loader::OpenCheckpoint(SWIFTCACHE_SOURCE_DIR "/tests/data/tiny/tiny-llama-a");
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    card_ = {gateway::text::SpecFromLoader(checkpoint->card.tokenizer), checkpoint->card.chat_template,
             checkpoint->card.vocab_size};
    const auto& config = checkpoint->config;
    engine::models::ModelOptions model_options{
        .kv = {config.num_layers, config.num_kv_heads, config.head_dim, 8, engine::backend::KvDtype::kBf16},
        .max_batch_rows = 64};
    auto model = engine::models::CreateModel(config, *checkpoint->weights, device_, model_options);
    ASSERT_TRUE(model.ok()) << model.status();
    engine::exec::EngineOptions options{.kv_cache_bytes = 256 << 10,
                                        .block_tokens = 8,
                                        .max_num_seqs = 8,
                                        .max_num_batched_tokens = 64,
                                        .max_model_len_tokens = 200};
    Running running{.name = name, .metrics = std::make_unique<Metrics>(), .engine = nullptr};
    auto engine = engine::exec::Engine::Create(options, device_, *std::move(model), clock_, *running.metrics);
    ASSERT_TRUE(engine.ok()) << engine.status();
    running.engine = *std::move(engine);
    running.engine->Start();
    engines_.push_back(std::move(running));
  }

  std::unique_ptr<fleet::EngineClient> MakeClient(const fleet::EngineInfo& info) {
    for (auto& engine : engines_) {
      if (engine.name == info.name) return std::make_unique<fakes::InMemoryEngineClient>(*engine.engine, card_);
    }
    return nullptr;
  }

  static fleet::EngineStatus Status(const std::string& name) {
    return {.info = {.name = name,
                     .instance_id = name,
                     .model_name = "tiny",
                     .address = "memory:" + name,
                     .max_model_len_tokens = 200,
                     .model_card_hash = "card",
                     .state = fleet::EngineState::kReady},
            .load = {}};
  }

  RealClock clock_;
  engine::backend::cpu::CpuDevice device_{{.threads = 2}};
  Metrics gateway_metrics_;
  fleet::ModelCard card_;
  std::vector<Running> engines_;
  std::unique_ptr<fleet::Fleet> fleet_;
  std::unique_ptr<relay::RelayImpl> relay_;
};

TEST_F(InMemoryCluster, ManyClientsWithCancellationsGetTheTokensThatTheyGetAlone) {
  constexpr int kRequests = 48;
  std::vector<std::vector<int32_t>> alone;
  for (int i = 0; i < kRequests; ++i) {
    auto client = Run(Greedy(i));
    ASSERT_TRUE(client->result.ok()) << client->result;
    alone.push_back(client->tokens);
  }
  std::atomic<int> compared = 0, cancelled = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(t);
      for (int i = 0; i < 24; ++i) {
        const int which = random() % kRequests;
        const bool cancel = random() % 4 == 0;
        auto client = Run(Greedy(which), cancel);
        if (client->result.ok()) {
          EXPECT_EQ(client->tokens, alone[which]) << "request " << which;
          ++compared;
        } else {
          EXPECT_TRUE(cancel && absl::IsCancelled(client->result)) << client->result;
          ++cancelled;
        }
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_GT(compared, 50);
  EXPECT_GT(cancelled, 0);
  for (auto& engine : engines_) EXPECT_GT(engine.engine->Load().steps_total, 0) << engine.name;
}

TEST_F(InMemoryCluster, RequestsGoToTheOtherEngineWhenOneDrains) {
  std::thread drain([&] { engines_[0].engine->ShutDown(clock_.Now() + absl::Seconds(20)); });
  for (int i = 0; i < 24; ++i) {
    auto client = Run(Greedy(i));
    EXPECT_TRUE(client->result.ok()) << client->result;
  }
  drain.join();
  EXPECT_EQ(engines_[0].engine->Load().kv_blocks_used, 0);
}

}  // namespace
}  // namespace swiftcache
