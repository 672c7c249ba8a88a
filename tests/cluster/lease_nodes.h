// SPDX-License-Identifier: Apache-2.0
// Engines of one process that lend each other memory over the real transport, and conversations that outgrow the
// borrower's arena.
//
//   Node near({.name = "near", .num_blocks = 160, .lends = true}, shm_dir_, hub_), chat({...}, shm_dir_, hub_);
//   const Talk talk = ConverseOnLeases(chat.engine(), [&] { ... });  // trouble
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/backend/cpu/cpu_device.h"
#include "engine/backend/cpu/cpu_kv_memory.h"
#include "engine/coordinator/coordinator.h"
#include "engine/exec/engine.h"
#include "engine/loader/checkpoint.h"
#include "engine/models/create_model.h"
#include "engine/transport/shm_transport.h"
#include "tests/cluster/storm.h"
#include "tests/engine/exec/recording_sink.h"
#include "tests/fakes/gated_model.h"
#include "tests/fakes/late_device.h"
#include "tests/fakes/lease_hub.h"
#include "tests/fakes/temp_folder.h"
#include "tests/fakes/unmapped_transport.h"

namespace swiftcache::engine::exec {

inline constexpr int kConversations = 12, kTurns = 5, kQuietTurns = 2;
inline constexpr int64_t kTurnTokens = 20, kOutputTokens = 12;
inline constexpr absl::Duration kRevokeDeadline = absl::Milliseconds(50);

// How what lies in leases is read.
struct Way {
  StreamMode stream = StreamMode::kInPlace;
  bool mapped = true;                                   // by the transport
  backend::KvDtype kv_dtype = backend::KvDtype::kBf16;  // the borrower's
};
inline constexpr Way kWays[] = {{StreamMode::kInPlace},
                                {StreamMode::kLsc},
                                {StreamMode::kLsc, /*mapped=*/false},
                                {StreamMode::kInPlace, /*mapped=*/true, backend::KvDtype::kInt8},
                                {StreamMode::kLsc, /*mapped=*/false, backend::KvDtype::kInt8}};

inline std::string WayName(const testing::TestParamInfo<Way>& info) {
  const std::string how = info.param.stream == StreamMode::kLsc ? "Streamed" : "InPlace";
  return how + (info.param.mapped ? "" : "Unmapped") + (info.param.kv_dtype == backend::KvDtype::kInt8 ? "Int8" : "");
}

inline bool ComesTrue(const std::function<bool()>& what) {
  const absl::Time give_up = absl::Now() + absl::Seconds(30);
  bool came = what();
  for (; !came && absl::Now() < give_up; came = what()) absl::SleepFor(absl::Milliseconds(1));
  return came;
}

struct NodeOptions {
  std::string name;
  std::string model = "tiny-llama-a";
  int64_t num_blocks = 0;
  int64_t block_tokens = 4;
  backend::KvDtype kv_dtype = backend::KvDtype::kBf16;
  Way way = {};
  bool lends = false, shares = true;
  absl::Duration lease_patience = absl::Seconds(60);
  Gate* gate = nullptr;  // of its steps
  bool late = false;     // on a device that computes late
  bool remaps = false;   // --remap_on_return
};

// One engine with all that sharing needs.
class Node {
 public:
  Node(const NodeOptions& node, const std::string& shm_dir, LeaseHub& hub)
      : name_(node.name), hub_(hub), device_(MakeDevice(node)) {
    auto checkpoint = loader::OpenCheckpoint(std::string(SWIFTCACHE_SOURCE_DIR "/tests/data/tiny/") + node.model);
    EXPECT_TRUE(checkpoint.ok()) << checkpoint.status();
    const loader::ModelConfig& config = checkpoint->config;
    const backend::KvLayout layout{config.num_layers, config.num_kv_heads, config.head_dim, node.block_tokens,
                                   node.kv_dtype};
    auto created = models::CreateModel(config, *checkpoint->weights, *device_, {.kv = layout, .max_batch_rows = 64});
    EXPECT_TRUE(created.ok()) << created.status();
    std::unique_ptr<models::Model> model = *std::move(created);
    if (node.gate != nullptr) model = std::make_unique<GatedModel>(std::move(model), *node.gate);
    const EngineOptions options{.kv_cache_bytes = node.num_blocks * layout.block_bytes(),
                                .kv_cache_dtype = node.kv_dtype,
                                .block_tokens = node.block_tokens,
                                .max_num_batched_tokens = 64,
                                .share = node.shares,
                                .stream = node.way.stream,
                                .lease_patience = node.lease_patience};
    auto memory = CreateEngineMemory(options, model->geometry(), *device_);
    EXPECT_TRUE(memory.ok()) << memory.status();
    std::optional<SharingDependencies> sharing;
    backend::KvMemory& kv = *memory->kv;
    memory::Arena& arena = node.late ? LateDevice::ArenaOf(kv) : static_cast<backend::cpu::CpuKvMemory&>(kv).arena();
    if (node.shares) sharing = MakeParts(node, arena, shm_dir);
    engine_ = Engine::Create(options, *std::move(memory), std::move(model), sharing, clock_, metrics_);
    if (node.shares) {
      hub.Join({.name = node.name,
                .channel = transport_->channel(),
                .num_blocks = node.num_blocks,
                .block_bytes = layout.block_bytes(),
                .lends = node.lends,
                .events = coordinator_.get()});
      coordinator_->Start(sharing->transport, &hub.BrokerOf(node.name),
                          [this](coordinator::LoopMessage message) { engine_->Post(std::move(message)); });
    }
    engine_->Start();
  }

  ~Node() {
    engine_->ShutDown(absl::InfiniteFuture());
    if (!coordinator_) return;
    coordinator_->Stop(absl::InfinitePast());
    transport_->Stop();
    hub_.Leave(name_);
  }

  Engine& engine() const { return *engine_; }
  coordinator::DonorSide::Reclaims reclaims() const { return coordinator_->reclaims(); }
  int64_t num_given() const { return static_cast<int64_t>(coordinator_->Given().size()); }
  double Count(const std::string& counter) { return metrics_.Counter(counter, "").Value(); }
  transport::UnmappedTransport::Counts told_donors() const { return unmapped_->counts(); }

 private:
  std::unique_ptr<backend::Device> MakeDevice(const NodeOptions& node) {
    const backend::cpu::CpuDeviceOptions options{.chunks = !node.remaps};
    if (node.late) return std::make_unique<LateDevice>(options, &queue_);
    return std::make_unique<backend::cpu::CpuDevice>(options);
  }
  SharingDependencies MakeParts(const NodeOptions& node, memory::Arena& arena, const std::string& shm_dir) {
    coordinator_ = std::make_unique<coordinator::Coordinator>(
        coordinator::Coordinator::Options{.instance_id = node.name,
                                          .revoke_deadline = kRevokeDeadline,
                                          .num_blocks = node.num_blocks,
                                          .block_bytes = arena.block_bytes(),
                                          .min_request_interval = absl::Milliseconds(1),
                                          .max_request_interval = absl::Milliseconds(20)},
        clock_, metrics_);
    transport::ShmTransport::Options options{
        .shm_dir = shm_dir, .name = node.name, .instance_id = node.name, .remap_on_return = node.remaps};
    if (node.late) options.space = LateDevice::Space();
    unmapped_ = std::make_unique<transport::UnmappedTransport>(*coordinator_);
    transport::TransportEvents* const heard = coordinator_.get();
    auto transport = transport::ShmTransport::Create(options, arena, clock_, node.way.mapped ? *heard : *unmapped_);
    EXPECT_TRUE(transport.ok()) << transport.status();
    transport_ = *std::move(transport);
    unmapped_->Over(transport_.get());
    if (!node.way.mapped) return {.transport = unmapped_.get(), .coordinator = coordinator_.get()};
    return {.transport = transport_.get(), .coordinator = coordinator_.get()};
  }

  const std::string name_;
  LeaseHub& hub_;
  RealClock clock_;
  Metrics metrics_;
  LateQueue queue_{{.pace = LateQueue::Pace::kThread}};
  const std::unique_ptr<backend::Device> device_;
  std::unique_ptr<coordinator::Coordinator> coordinator_;
  std::unique_ptr<transport::UnmappedTransport> unmapped_;  // used where it is the node's way
  std::unique_ptr<transport::ShmTransport> transport_;
  std::unique_ptr<Engine> engine_;
};

struct Talk {
  std::vector<std::vector<int32_t>> histories;  // by conversation, after the last turn
  int64_t donor_tokens = 0;                     // of the prompts, found in leases
  int64_t computed_tokens = 0;                  // of the prompts, found nowhere
};

inline std::shared_ptr<Recording> Ask(Engine& engine, const std::string& id, std::vector<int32_t> prompt,
                                      int64_t output_tokens) {
  Request request{.request_id = id, .prompt = std::move(prompt), .max_tokens = output_tokens};
  request.sampling.temperature = 0;
  request.ignore_eos = true;
  auto recording = std::make_shared<Recording>();
  EXPECT_TRUE(engine.Submit(std::move(request), std::make_unique<RecordingSink>(recording)).ok());
  return recording;
}

inline std::vector<int32_t> SomeTokens(std::mt19937& rng, int64_t count) {
  std::vector<int32_t> tokens(count);
  for (int32_t& token : tokens) token = static_cast<int32_t>(rng() % 500);
  return tokens;
}

// All conversations take their turns side by side; the next prompt is the whole history and something new.
inline Talk Converse(Engine& engine, const std::function<void(int turn)>& before_turn = nullptr) {
  std::mt19937 rng(7);
  Talk talk;
  talk.histories.resize(kConversations);
  for (int turn = 0; turn < kTurns; ++turn) {
    if (before_turn) before_turn(turn);
    std::vector<std::shared_ptr<Recording>> recordings;
    for (int c = 0; c < kConversations; ++c) {
      std::vector<int32_t>& history = talk.histories[c];
      const std::vector<int32_t> more = SomeTokens(rng, kTurnTokens);
      history.insert(history.end(), more.begin(), more.end());
      recordings.push_back(Ask(engine, absl::StrCat(c, "/", turn), history, kOutputTokens));
    }
    for (int c = 0; c < kConversations; ++c) {
      const absl::Status status = recordings[c]->Wait();
      EXPECT_TRUE(status.ok()) << status;
      const Recording::Output output = recordings[c]->output();
      talk.histories[c].insert(talk.histories[c].end(), output.tokens.begin(), output.tokens.end());
      const Usage& usage = *output.usage;
      talk.donor_tokens += usage.cached_donor_tokens;
      talk.computed_tokens += usage.prompt_tokens - usage.cached_local_tokens - usage.cached_donor_tokens;
    }
  }
  return talk;
}

// What own memory has no room for after the first turn is in leases by the second; trouble comes while nobody runs.
inline Talk ConverseOnLeases(Engine& borrower, const std::function<void()>& trouble) {
  return Converse(borrower, [&](int turn) {
    if (turn == 1) (void)ComesTrue([&] { return borrower.Load().kv_blocks_leased_in_used > 0; });
    if (turn == kQuietTurns && trouble) trouble();
  });
}

// Tokens that are found in leases where conversations go on one by one, and the latest first. Streams have slots for a
// few conversations at a time: where each takes its turn after all the others, they would find nothing of it.
inline int64_t FoundOfTheLatest(Engine& borrower, const Talk& talk) {
  int64_t found = 0;
  for (int i = 0; i < 2 * kConversations; ++i) {
    const int c = i < kConversations ? i : 2 * kConversations - 1 - i;  // there, and back again
    const auto recording = Ask(borrower, absl::StrCat(i, "/again"), talk.histories[c], /*output_tokens=*/1);
    EXPECT_EQ(recording->Wait(), absl::OkStatus());
    found += recording->output().usage->cached_donor_tokens;
  }
  return found;
}

class LeaseTest : public testing::Test {
 protected:
  ~LeaseTest() override { EXPECT_TRUE(std::filesystem::is_empty(shm_dir_)) << "sockets were left behind"; }

  Talk Alone(backend::KvDtype kv_dtype = backend::KvDtype::kBf16) {
    Node node({.name = "alone", .num_blocks = 4096, .kv_dtype = kv_dtype, .shares = false}, shm_dir_, hub_);
    return Converse(node.engine());
  }

  // A borrower with room for two conversations, and two donors of other block bytes.
  // The storm begins when blocks lie in leases, and ends with the conversations.
  Talk Sharing(Way way, Storm* storm = nullptr, bool late = false, bool remaps = false) {
    Node near({.name = "near", .num_blocks = 512, .block_tokens = 8, .lends = true, .late = late, .remaps = remaps},
              shm_dir_, hub_);
    Node far({.name = "far", .num_blocks = 512, .kv_dtype = backend::KvDtype::kF32, .lends = true, .late = late},
             shm_dir_, hub_);
    Node chat({.name = "chat", .num_blocks = 72, .kv_dtype = way.kv_dtype, .way = way, .late = late}, shm_dir_, hub_);
    Talk talk = ConverseOnLeases(
        chat.engine(), storm == nullptr ? std::function<void()>() : [&] { storm->Begin(); });
    if (storm != nullptr) storm->End();
    talk.donor_tokens += FoundOfTheLatest(chat.engine(), talk);
    EXPECT_EQ(chat.engine().Load().kv_blocks_used, 0);
    if (!way.mapped) ExpectNoMessageALayer(chat, /*donors=*/2);
    return talk;
  }

  // What one step and one donor come to, unmapped_test.cc counts.
  static void ExpectNoMessageALayer(const Node& node, int64_t donors) {
    const transport::UnmappedTransport::Counts told = node.told_donors();
    const int64_t steps = node.engine().Load().steps_total;
    EXPECT_GT(told.streams, 0);
    EXPECT_LE(told.streams, steps) << "one a step";
    EXPECT_LE(told.loads, steps) << "blocks that are fetched back, and no layer by itself";
    EXPECT_LE(told.store_batches, steps);
    std::printf(
        "%ld steps, %ld of them streamed %ld slices by %ld control messages to %ld donors; %ld batches of stores by "
        "%ld\n",
        static_cast<long>(steps), static_cast<long>(told.streams), static_cast<long>(told.slices),
        static_cast<long>(told.stream_messages), static_cast<long>(donors), static_cast<long>(told.store_batches),
        static_cast<long>(told.store_messages));
  }

  LeaseHub hub_;
  const TempFolder temp_folder_{"/tmp"};
  const std::string shm_dir_ = temp_folder_.path();
};

}  // namespace swiftcache::engine::exec
