// SPDX-License-Identifier: Apache-2.0
// Engines of one process that lend each other memory over the real transport: greedy tokens of conversations that
// outgrow the borrower's arena are those of an engine with enough memory, in place and streamed, in quiet and while
// leases are revoked all the time.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <atomic>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "engine/coordinator/coordinator.h"
#include "engine/exec/engine.h"
#include "engine/loader/checkpoint.h"
#include "engine/models/create_model.h"
#include "engine/transport/shm_transport.h"
#include "tests/engine/exec/recording_sink.h"
#include "tests/fakes/lease_hub.h"

namespace swiftcache::engine::exec {
namespace {

constexpr int kConversations = 12, kTurns = 4;
constexpr int64_t kTurnTokens = 20, kOutputTokens = 12;

struct NodeOptions {
  std::string name;
  std::string model = "tiny-llama-a";
  int64_t num_blocks = 0;
  int64_t block_tokens = 4;
  backend::KvDtype kv_dtype = backend::KvDtype::kBf16;
  StreamMode stream = StreamMode::kInPlace;
  bool lends = false, shares = true;
  absl::Duration lease_patience = absl::Seconds(60);
};

// One engine with all that sharing needs.
class Node {
 public:
  Node(const NodeOptions& node, const std::string& shm_dir, LeaseHub& hub) : name_(node.name), hub_(hub) {
    auto checkpoint = loader::OpenCheckpoint(std::string(SWIFTCACHE_SOURCE_DIR "/tests/data/tiny/") + node.model);
    EXPECT_TRUE(checkpoint.ok()) << checkpoint.status();
    const loader::ModelConfig& config = checkpoint->config;
    const backend::KvLayout layout{config.num_layers, config.num_kv_heads, config.head_dim, node.block_tokens,
                                   node.kv_dtype};
    auto model = models::CreateModel(config, *checkpoint->weights, {.kv = layout, .max_batch_rows = 64, .threads = 1});
    EXPECT_TRUE(model.ok()) << model.status();
    const EngineOptions options{.kv_cache_bytes = node.num_blocks * layout.block_bytes(),
                                .kv_cache_dtype = node.kv_dtype,
                                .block_tokens = node.block_tokens,
                                .max_num_batched_tokens = 64,
                                .share = node.shares,
                                .stream = node.stream,
                                .lease_patience = node.lease_patience};
    auto reservation = Engine::Reserve(options, (*model)->geometry());
    EXPECT_TRUE(reservation.ok()) << reservation.status();
    kv::Arena& arena = *reservation->arena;
    engine_ = Engine::Create(options, *std::move(reservation), *std::move(model), clock_, metrics_);
    if (node.shares) {
      coordinator_ = std::make_unique<coordinator::Coordinator>(
          coordinator::Coordinator::Options{.instance_id = node.name,
                                            .num_blocks = node.num_blocks,
                                            .block_bytes = layout.block_bytes(),
                                            .min_request_interval = absl::Milliseconds(1),
                                            .max_request_interval = absl::Milliseconds(20)},
          clock_, metrics_);
      auto transport = transport::ShmTransport::Create(
          {.shm_dir = shm_dir, .name = node.name, .instance_id = node.name}, arena, clock_, *coordinator_);
      EXPECT_TRUE(transport.ok()) << transport.status();
      transport_ = *std::move(transport);
      hub.Join({.name = node.name,
                .channel = transport_->channel(),
                .num_blocks = node.num_blocks,
                .block_bytes = layout.block_bytes(),
                .lends = node.lends,
                .events = coordinator_.get()});
      engine_->Share(*transport_, *coordinator_);
      coordinator_->Start(transport_.get(), &hub.BrokerOf(node.name), &engine_->lease_port());
    }
    engine_->Start();
  }

  ~Node() {
    engine_->Drain(absl::InfiniteFuture());
    if (!coordinator_) return;
    coordinator_->Stop(absl::InfinitePast());
    transport_->Stop();
    hub_.Leave(name_);
  }

  Engine& engine() { return *engine_; }

 private:
  const std::string name_;
  LeaseHub& hub_;
  RealClock clock_;
  Metrics metrics_;
  std::unique_ptr<coordinator::Coordinator> coordinator_;
  std::unique_ptr<transport::ShmTransport> transport_;
  std::unique_ptr<Engine> engine_;
};

struct Talk {
  std::vector<std::vector<int32_t>> histories;  // by conversation, after the last turn
  int64_t donor_tokens = 0;                     // of the prompts, found in leases
};

// All conversations take their turns side by side; the next prompt is the whole history and something new.
Talk Converse(Engine& engine) {
  std::mt19937 rng(7);
  Talk talk;
  talk.histories.resize(kConversations);
  for (int turn = 0; turn < kTurns; ++turn) {
    std::vector<std::shared_ptr<Recording>> recordings;
    for (int c = 0; c < kConversations; ++c) {
      std::vector<int32_t>& history = talk.histories[c];
      for (int64_t i = 0; i < kTurnTokens; ++i) history.push_back(static_cast<int32_t>(rng() % 500));
      Request request{.request_id = absl::StrCat(c, "/", turn), .prompt = history, .max_tokens = kOutputTokens};
      request.sampling.temperature = 0;
      request.ignore_eos = true;
      recordings.push_back(std::make_shared<Recording>());
      EXPECT_TRUE(engine.Submit(std::move(request), std::make_unique<RecordingSink>(recordings.back())).ok());
    }
    for (int c = 0; c < kConversations; ++c) {
      const absl::Status status = recordings[c]->Wait();
      EXPECT_TRUE(status.ok()) << status;
      const Recording::Output output = recordings[c]->output();
      talk.histories[c].insert(talk.histories[c].end(), output.tokens.begin(), output.tokens.end());
      talk.donor_tokens += output.usage->cached_donor_tokens;
    }
  }
  return talk;
}

class LeaseTest : public testing::Test {
 protected:
  LeaseTest() {
    char folder[] = "/tmp/swiftcache-lease-test-XXXXXX";
    EXPECT_NE(mkdtemp(folder), nullptr);
    shm_dir_ = folder;
  }
  ~LeaseTest() override {
    EXPECT_TRUE(std::filesystem::is_empty(shm_dir_)) << "sockets were left behind";
    std::filesystem::remove_all(shm_dir_);
  }

  Talk Alone() {
    Node node({.name = "alone", .num_blocks = 4096, .shares = false}, shm_dir_, hub_);
    return Converse(node.engine());
  }

  // A borrower with room for two conversations, and two donors of other block bytes.
  Talk Sharing(StreamMode stream, absl::Duration between_revocations, int64_t* revocations = nullptr) {
    Node near({.name = "near", .num_blocks = 512, .block_tokens = 8, .lends = true}, shm_dir_, hub_);
    Node far({.name = "far", .num_blocks = 512, .kv_dtype = backend::KvDtype::kF32, .lends = true}, shm_dir_, hub_);
    Node chat({.name = "chat", .num_blocks = 72, .stream = stream}, shm_dir_, hub_);
    std::atomic<bool> done = false;
    std::thread storm([&] {
      std::mt19937_64 rng(11);
      while (!done && between_revocations < absl::InfiniteDuration()) {
        if (hub_.Revoke(rng()) && revocations != nullptr) ++*revocations;
        absl::SleepFor(between_revocations);
      }
    });
    const Talk talk = Converse(chat.engine());
    done = true;
    storm.join();
    const EngineLoad load = chat.engine().Load();
    EXPECT_EQ(load.kv_blocks_used, 0);
    return talk;
  }

  LeaseHub hub_;
  std::string shm_dir_;
};

TEST_F(LeaseTest, TokensAreTheSameWithBlocksReadInPlace) {
  const Talk wanted = Alone();
  const Talk got = Sharing(StreamMode::kInPlace, absl::InfiniteDuration());
  EXPECT_EQ(got.histories, wanted.histories);
  EXPECT_GT(got.donor_tokens, 0);
  std::printf("%ld prompt tokens came from donors\n", static_cast<long>(got.donor_tokens));
}

TEST_F(LeaseTest, TokensAreTheSameWithBlocksStreamedLayerByLayer) {
  const Talk wanted = Alone();
  const Talk got = Sharing(StreamMode::kLsc, absl::InfiniteDuration());
  EXPECT_EQ(got.histories, wanted.histories);
  EXPECT_GT(got.donor_tokens, 0);
}

TEST_F(LeaseTest, TokensAreTheSameWhileLeasesAreRevokedAllTheTime) {
  const Talk wanted = Alone();
  for (const StreamMode stream : {StreamMode::kInPlace, StreamMode::kLsc}) {
    int64_t revocations = 0;
    const Talk got = Sharing(stream, absl::Milliseconds(3), &revocations);
    EXPECT_EQ(got.histories, wanted.histories);
    EXPECT_GT(revocations, 0);
    std::printf("%ld revocations, %ld leases ended, %ld prompt tokens came from donors\n",
                static_cast<long>(revocations), static_cast<long>(hub_.ended()), static_cast<long>(got.donor_tokens));
  }
}

TEST_F(LeaseTest, ARequestWhoseLeasesAreGoneForGoodEndsAndOthersGoOn) {
  Node chat({.name = "chat", .num_blocks = 72, .lease_patience = absl::Milliseconds(300)}, shm_dir_, hub_);
  auto donor = std::make_unique<Node>(NodeOptions{.name = "near", .num_blocks = 512, .lends = true}, shm_dir_, hub_);
  const auto submit = [&](const std::string& id, int64_t prompt_tokens, int64_t output_tokens) {
    Request request{.request_id = id, .prompt = std::vector<int32_t>(prompt_tokens, 7), .max_tokens = output_tokens};
    request.ignore_eos = true;
    auto recording = std::make_shared<Recording>();
    EXPECT_TRUE(chat.engine().Submit(std::move(request), std::make_unique<RecordingSink>(recording)).ok());
    return recording;
  };
  const auto wide = submit("wide", 72 * 4 + 40, 100'000);  // more than the own 72 blocks of 4 tokens
  while (chat.engine().Load().kv_blocks_leased_in_used == 0) absl::SleepFor(absl::Milliseconds(1));
  donor.reset();
  EXPECT_EQ(wide->Wait().code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(submit("narrow", 20, 4)->Wait(), absl::OkStatus());
  EXPECT_EQ(chat.engine().Load().kv_blocks_used, 0);
}

}  // namespace
}  // namespace swiftcache::engine::exec
