// SPDX-License-Identifier: Apache-2.0
// The part `loop`: everything that the loop's thread does in a step beside the model. Loop, scheduler, cache, sampling
// state, metrics, coordinator and the thread that tells sinks are the engine's; the model names a token for each row,
// the transport says of each copy that it arrived by the next step.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/base/clock.h"
#include "common/metrics/metrics.h"
#include "engine/backend/address_space.h"
#include "engine/backend/cpu/cpu_device.h"
#include "engine/coordinator/coordinator.h"
#include "engine/exec/engine_metrics.h"
#include "engine/exec/outbound.h"
#include "engine/exec/step_loop.h"
#include "engine/exec/urgency.h"
#include "glog/logging.h"
#include "tests/bench/bookkeeping.h"
#include "tests/bench/counted.h"

namespace swiftcache::engine {
namespace {

using coordinator::StoredMessage;
using coordinator::UseMessage;
using exec::LiveRequest;

constexpr int64_t kStepTokens = 8192;
constexpr int64_t kMaxOutput = 8192;  // of a row, more than it gets to
constexpr backend::KvLayout kSmallBlocks = {
    .num_layers = 1, .num_kv_heads = 1, .head_dim = 1, .block_tokens = kBlockTokens};

class NullModel final : public models::Model {
 public:
  const models::ModelGeometry& geometry() const override { return geometry_; }
  backend::Fence Run(const models::ForwardBatch& batch, backend::LayerGate* gate,
                     models::ForwardResult& result) override {
    result = {};
    gate->Arrived(0).Wait();
    result.cut_short = !gate->Read(0, {});
    result.tokens.assign(batch.samples.size(), sample::SampledToken{.token_id = static_cast<int32_t>(++steps_)});
    return {};
  }

 private:
  const models::ModelGeometry geometry_ = {.num_layers = kSmallBlocks.num_layers,
                                           .num_kv_heads = kSmallBlocks.num_kv_heads,
                                           .head_dim = kSmallBlocks.head_dim,
                                           .vocab_size = 1 << 30,
                                           .max_context_tokens = 1 << 30};
  int64_t steps_ = 0;
};

/// Leases that nobody lends. Copies are never made, since nothing is ever read.
class NullTransport final : public transport::Transport {
 public:
  const char* kind() const override { return "null"; }
  bool maps() const override { return true; }
  std::string channel() const override { return {}; }
  absl::StatusOr<kv::Epoch> Grant(const transport::GrantSpec&) override { return kv::Epoch(1); }
  void SendRevoke(kv::LeaseId, absl::Duration) override {}
  void SendRenewed(kv::LeaseId) override {}
  void Fence(kv::LeaseId) override {}
  void Open(const transport::OpenSpec&) override {}
  void SendRenewal(kv::LeaseId, int64_t) override {}
  void SendRelease(kv::LeaseId) override {}
  void Abandon(kv::LeaseId) override {}
  void Close(kv::LeaseId) override {}
  std::vector<transport::Ticket> Store(std::span<const transport::StorePiece> pieces, const backend::Fence&) override {
    std::vector<transport::Ticket> tickets;
    for (size_t i = 0; i < pieces.size(); ++i) tickets.emplace_back(++last_ticket_);
    stored_.insert(stored_.end(), tickets.begin(), tickets.end());
    return tickets;
  }
  transport::Ticket Load(std::vector<transport::LoadPiece>, const backend::Fence&) override {
    return transport::Ticket(++last_ticket_);
  }
  std::vector<kv::LeaseId> Await(transport::Ticket) override { return {}; }
  std::unique_ptr<transport::SliceStream> BeginStream(transport::StreamSpec, const backend::Fence&) override {
    return nullptr;
  }
  void Stop() override {}
  transport::TransportStats stats() const override { return {}; }

  std::vector<transport::Ticket> TakeStored() { return std::exchange(stored_, {}); }

 private:
  int64_t last_ticket_ = 0;
  std::vector<transport::Ticket> stored_;
};

class NullBroker final : public coordinator::LeaseBroker {
 public:
  void RequestLease(const coordinator::LeaseRequest&) override {}
  void RequestScaleUp(int64_t, int64_t) override {}
  void Report(const coordinator::LeaseEvent&) override {}
  void ReportWindow(const coordinator::Window&) override {}
};

class NullSink final : public exec::ResponseSink {
 public:
  void OnTokens(exec::TokenEvent) override {}
  void OnDone(absl::Status) override {}
};

class LoopWorld final : private exec::LoopObserver {
 public:
  explicit LoopWorld(const Sizes& sizes)
      : sizes_(sizes),
        metrics_(registry_, {.block_tokens = kBlockTokens, .num_blocks = OwnBlocks()}),
        coordinator_({.instance_id = "bench", .num_blocks = OwnBlocks(), .block_bytes = kSmallBlocks.block_bytes()},
                     clock_, registry_),
        outbound_(&metrics_, [](const LiveRequest&) {}),
        lease_bytes_(LeaseBlocks() * kSmallBlocks.block_bytes()) {
    backend::cpu::CpuDevice device({});
    const int64_t block_bytes = kSmallBlocks.block_bytes();
    auto memory = device.CreateKvMemory({.bytes = OwnBlocks() * block_bytes, .block_bytes = block_bytes});
    CHECK(memory.ok()) << memory.status();
    exec::EngineOptions options{.block_tokens = kBlockTokens,
                                .max_num_seqs = sizes.rows,
                                .max_num_batched_tokens = kStepTokens,
                                .share = sizes.leases > 0 || sizes.shares,
                                .max_tokens_on_leases = kStepTokens};
    std::optional<exec::LoopSharing> sharing;
    if (options.share) sharing = exec::LoopSharing{&transport_, &coordinator_, &urgency_};
    loop_ = std::make_unique<exec::StepLoop>(options, kSmallBlocks, std::make_unique<NullModel>(), *std::move(memory),
                                             sharing, clock_, &metrics_, static_cast<exec::LoopObserver*>(this));
    coordinator_.Start(&transport_, &broker_, [](coordinator::LoopMessage) {});
    outbound_.Start();
    for (int64_t i = 0; i < sizes.leases; ++i) {
      loop_->Handle(UseMessage{
          .id = kv::LeaseId(i + 1),
          .num_blocks = LeaseBlocks(),
          .donor = absl::StrCat("donor", i % 4),
          .view = {
              .base = backend::AddressSpace().Of(lease_bytes_.data()), .bytes = LeaseBlocks(), .word = {&word_, 0}}});
    }
  }
  ~LoopWorld() override {
    loop_->EndAll();
    coordinator_.Stop(absl::InfinitePast());
    outbound_.Stop();
  }

  /// A cache full of idle blocks, and rows that decode; the oldest blocks of their prompt lie in leases.
  void Fill() {
    const std::vector<int32_t> shared = Fresh(std::max<int64_t>(kBlockTokens, sizes_.prompt_tokens - kTailTokens));
    Cache(shared);
    for (int64_t i = 0; loop_->load().evicted_blocks_total == 0; ++i) {
      Cache(Fresh(kStepTokens / 2));
      if (i % 8 == 7) Cache(shared);  // used now and then, so that it is not what is evicted
    }
    Settle();
    AddRows(sizes_.rows, shared);
    while (generated_ < sizes_.rows || loop_->load().running_requests < sizes_.rows) Step();
    AddRows(sizes_.waiting, shared);
    Settle();
    for (int i = 0; i < 20; ++i) Step();
  }
  /// A turn of the loop; returns its tokens.
  int64_t Step() {
    const int64_t before = generated_;
    FinishStores();
    loop_->Turn();
    return generated_ - before;
  }

 private:
  // Of the step before; returns how many.
  size_t FinishStores() {
    const std::vector<transport::Ticket> stored = transport_.TakeStored();
    for (const transport::Ticket ticket : stored) loop_->Handle(StoredMessage{ticket, {}});
    return stored.size();
  }
  int64_t OwnBlocks() const { return sizes_.leases > 0 ? sizes_.blocks / 2 : sizes_.blocks; }
  int64_t LeaseBlocks() const { return sizes_.leases > 0 ? sizes_.blocks / 2 / sizes_.leases : 0; }

  std::vector<int32_t> Fresh(int64_t count) {
    std::vector<int32_t> tokens(count);
    for (int32_t& token : tokens) token = next_token_++;
    return tokens;
  }
  void Add(std::vector<int32_t> prompt, int64_t max_tokens) {
    exec::Request request;
    request.request_id = absl::StrCat("request-", next_request_++);
    request.prompt = std::move(prompt);
    request.sampling.temperature = 0;
    request.max_tokens = max_tokens;
    request.ignore_eos = true;
    const int64_t total = static_cast<int64_t>(request.prompt.size()) + max_tokens;
    loop_->Accept(std::make_unique<LiveRequest>(std::move(request), std::make_unique<NullSink>(), clock_.Now(), total));
  }
  void AddRows(int64_t count, const std::vector<int32_t>& shared) {
    for (int64_t i = 0; i < count; ++i) {
      std::vector<int32_t> prompt = shared;
      const std::vector<int32_t> tail = Fresh(kTailTokens + i % kBlockTokens);  // blocks do not end all in one step
      prompt.insert(prompt.end(), tail.begin(), tail.end());
      Add(std::move(prompt), kMaxOutput);
    }
  }
  // Nothing but an idle prompt is left of it.
  void Cache(std::vector<int32_t> prompt) {
    const int64_t ended = ended_;
    Add(std::move(prompt), 1);
    while (ended_ == ended) Step();
    generated_ = 0;
  }
  // Until the watermark is free.
  void Settle() {
    do {
      loop_->ServeBetweenSteps();
    } while (FinishStores() > 0);
  }

  // As the engine hears of it.
  void OnStarted(const LiveRequest&) override { absl::MutexLock lock(&mutex_); }
  void OnEnded(const LiveRequest&) override {
    absl::MutexLock lock(&mutex_);
    ++ended_;
  }
  void OnLoad(const exec::EngineLoad& load) override {
    absl::MutexLock lock(&mutex_);
    load_ = load;
  }
  void Deliver(exec::OutboundBatch batch) override {
    generated_ += static_cast<int64_t>(batch.tokens.size());
    outbound_.Deliver(std::move(batch));
  }
  void OnDeviceLost(const absl::Status& why) override { LOG(FATAL) << why; }

  const Sizes sizes_;
  const RealClock clock_;
  Metrics registry_;
  exec::EngineMetrics metrics_;
  NullTransport transport_;
  NullBroker broker_;
  coordinator::Coordinator coordinator_;
  exec::Urgency urgency_;
  exec::Outbound outbound_;
  const std::vector<std::byte> lease_bytes_;
  std::atomic<uint64_t> word_{0};
  absl::Mutex mutex_;
  int64_t ended_ = 0, generated_ = 0;
  exec::EngineLoad load_;
  int64_t next_request_ = 0;
  int32_t next_token_ = 0;
  std::unique_ptr<exec::StepLoop> loop_;
};

constexpr Sizes kUnused = {.rows = 64, .leases = 0, .blocks = 20000, .prompt_tokens = 4096};

}  // namespace

void MeasureLoop() {
  std::printf("%8s %8s %9s %14s %8s | %12s %14s\n", "rows", "leases", "blocks", "prompt tokens", "waiting", "us a step",
              "tokens/s");
  const std::vector<Sizes> lines = {
      {.rows = 1},
      {.rows = 16},
      {.rows = 256},
      {.rows = 1000},
      {.leases = 0},
      {.leases = 100},
      {.leases = 1000},
      {.blocks = 10000},
      {.blocks = 1000000},
      {.prompt_tokens = 100},
      {.prompt_tokens = 10000},
      {.prompt_tokens = 100000},
      {.rows = 1, .leases = 0},
      {.rows = 1, .leases = 0, .prompt_tokens = 100000},
      {.rows = 1, .prompt_tokens = 100000},
      {.waiting = 1000},
      {.rows = 1000, .leases = 1000, .blocks = 1000000, .prompt_tokens = 100000, .waiting = 1000}};
  for (const Sizes& sizes : lines) {
    LoopWorld world(sizes);
    world.Fill();
    const double micros = MicrosOfAStep(world, sizes.rows);
    std::printf("%8ld %8ld %9ld %14ld %8ld | %12.1f %14.0f\n", sizes.rows, sizes.leases, sizes.blocks,
                sizes.prompt_tokens, sizes.waiting, micros, static_cast<double>(sizes.rows) * 1e6 / micros);
    std::fflush(stdout);
  }
}

void MeasureUnused() {
  constexpr int kRounds = 15;
  Sizes sizes = kUnused;
  LoopWorld alone(sizes);
  sizes.shares = true;
  LoopWorld sharing(sizes);
  alone.Fill();
  sharing.Fill();
  std::vector<double> of_alone, added;
  for (int i = 0; i < kRounds; ++i) {
    of_alone.push_back(MicrosOfAStep(alone, sizes.rows));
    added.push_back(MicrosOfAStep(sharing, sizes.rows) - of_alone.back());
  }
  for (std::vector<double>* values : {&of_alone, &added}) std::sort(values->begin(), values->end());
  std::printf("us a step of the loop, medians of %d: alone %.1f, sharing adds %.1f (%.1f to %.1f)\n", kRounds,
              of_alone[kRounds / 2], added[kRounds / 2], added.front(), added.back());
}

void CountUnused(bool shares) {
  Sizes sizes = kUnused;
  sizes.shares = shares;
  LoopWorld world(sizes);
  world.Fill();
  swiftcache_counted([&] {
    for (int i = 0; i < 256; ++i) world.Step();
  });
}

}  // namespace swiftcache::engine
