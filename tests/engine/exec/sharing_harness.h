// SPDX-License-Identifier: Apache-2.0
// A StepLoop that shares its memory: real loop, cache and coordinator between a fake transport and a broker that only
// writes down; the test plays donor, borrower and broker.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "engine/coordinator/loop_message.h"
#include "engine/exec/step_loop.h"
#include "engine/exec/urgency.h"
#include "tests/engine/exec/loop_harness.h"
#include "tests/fakes/fake_transport.h"
#include "tests/fakes/late_kv_memory.h"
#include "tests/fakes/recording_lease_broker.h"
#include "tests/fakes/recording_loop.h"

namespace swiftcache::engine::exec {

using coordinator::LoopMessage;

struct SharingOptions {
  FakeModelOptions model = {.block_tokens = 4};
  int64_t num_blocks = 16;
  StreamMode stream = StreamMode::kInPlace;
  bool scrub_on_return = true;
  bool mapped = true;           // what lies in leases, by the transport
  bool measures_links = false;  // likewise
  int64_t max_tokens_on_leases = EngineOptions().max_tokens_on_leases;
  absl::Duration target_itl = EngineOptions().target_itl;
  bool borrow = true;
  std::function<absl::Status(int64_t offset_bytes, int64_t bytes)> on_exchange = {};  // FakeTransport's
};

/// The loop is stepped by the test's thread; the coordinator has its own.
class SharingHarness : private LoopObserver {
 public:
  static constexpr int64_t kModelLength = 400;  // tokens, of requests without max_tokens

  explicit SharingHarness(const SharingOptions& options)
      : model_(options.model),
        block_bytes_(options.model.layout().block_bytes()),
        metrics_(registry_, {options.model.block_tokens, options.num_blocks}),
        coordinator_({.instance_id = "me", .num_blocks = options.num_blocks, .block_bytes = block_bytes_}, clock_,
                     registry_) {
    EngineOptions engine;
    engine.block_tokens = options.model.block_tokens;
    engine.share = true;
    engine.borrow = options.borrow;
    engine.stream = options.stream;
    engine.scrub_on_return = options.scrub_on_return;
    engine.max_tokens_on_leases = options.max_tokens_on_leases;
    engine.target_itl = options.target_itl;
    transport_.mapped = options.mapped;
    transport_.measures = options.measures_links;
    transport_.on_exchange = options.on_exchange;
    auto memory = MakeLateKvMemory({.bytes = options.num_blocks * block_bytes_, .block_bytes = block_bytes_}, &queue_,
                                   options.model.space);
    memory->pace = 40 << 20;  // between two steps that follow each other, 4 MiB are cleared
    memory_ = memory.get();
    FakeModelOptions model = options.model;
    model.on_step = [this](const FakeStep& step) {
      rows_ = step.num_rows;
      if (during_step) during_step();
      return step_status;
    };
    model.on_layer = [this](int64_t layer) {
      if (during_layer) during_layer(layer);
    };
    model.on_products = [this](int64_t layer) {
      if (during_products) during_products(layer);
    };
    loop_ = std::make_unique<StepLoop>(engine, model_.layout(), std::make_unique<FakeModel>(model), std::move(memory),
                                       LoopSharing{&transport_, &coordinator_, &urgency_}, loop_clock_, &metrics_,
                                       static_cast<LoopObserver*>(this));
    coordinator_.Start(&transport_, &broker_, [this](LoopMessage message) { Push(std::move(message)); });
  }
  ~SharingHarness() override { coordinator_.Stop(absl::InfinitePast()); }

  /// Called when the model has its batch and has read nothing yet.
  std::function<void()> during_step;
  /// Called when a layer of it is to be computed.
  std::function<void(int64_t layer)> during_layer;
  /// Called when it has read its KV.
  std::function<void(int64_t layer)> during_products;
  /// What the model says of it.
  absl::Status step_status;
  /// Called when a request runs for the first time, and when it has ended.
  std::function<void(const LiveRequest&request)> on_started, on_ended;

  /// Whose a lease is.
  std::function<std::string(int64_t id)> donor_of = [](int64_t id) { return absl::StrCat("donor", id); };

  /// A donor has granted so many blocks, which are not open yet.
  void Grant(int64_t id, int64_t blocks) {
    coordinator_.OnLease({.id = kv::LeaseId(id),
                          .donor = donor_of(id),
                          .donor_instance = "other",
                          .borrower_instance = "me",
                          .extent = {0, blocks},
                          .num_bytes = blocks * block_bytes_,
                          .borrower_blocks = blocks,
                          .epoch = kv::Epoch(1),
                          .state = lease::State::kGranted});
    ASSERT_TRUE(transport_.log().WaitFor(absl::StrCat("Open ", id)));
  }
  /// A donor lends so many blocks.
  void Borrow(int64_t id, int64_t blocks, bool slow_link = false) {
    Grant(id, blocks);
    const kv::LeaseId lease(id);
    coordinator_.OnOpened(lease, transport_.AddLease(lease, blocks * block_bytes_, kv::Epoch(1), slow_link));
    ASSERT_TRUE(heard_.WaitFor(absl::StrCat("Use ", id, " of ", blocks)));
    Pump();
  }
  /// Another engine asks for an extent of this one.
  void Offer(int64_t id, lease::Extent extent) {
    coordinator_.OnLease({.id = kv::LeaseId(id),
                          .donor_instance = "me",
                          .borrower_instance = "other",
                          .extent = extent,
                          .num_bytes = extent.num_blocks * block_bytes_});
    ASSERT_TRUE(heard_.WaitFor(absl::StrCat("Clear ", id)));
  }
  /// And is answered.
  void OfferAway(int64_t id, lease::Extent extent) {
    Offer(id, extent);
    Pump();
    loop_->ServeBetweenSteps();
  }

  /// And has it.
  void LendAway(int64_t id, lease::Extent extent) {
    OfferAway(id, extent);
    ASSERT_TRUE(broker_.log().WaitFor(absl::StrCat("GRANTED ", id)));
    coordinator_.OnBorrowerOpened(kv::LeaseId(id));
  }

  /// And has it back: what was idle there is dropped, so that own memory has room.
  void LendAwayAndTakeBack(int64_t id, lease::Extent extent) {
    OfferAway(id, extent);
    ASSERT_TRUE(broker_.log().WaitFor(absl::StrCat("GRANTED ", id)));
    coordinator_.OnReleased(kv::LeaseId(id));
    ASSERT_TRUE(heard_.WaitFor(absl::StrCat("TakeBack ", id)));
    Pump();
  }

  /// The prompt of a conversation: six blocks, with other tokens for every seed.
  std::vector<int32_t> Prompt(unsigned seed) const {
    return RandomTokens(seed, 6 * model_.block_tokens, model_.vocab_size);
  }
  std::shared_ptr<Recording> Add(std::vector<int32_t> prompt, std::optional<int64_t> max_tokens,
                                 const std::string& salt = "", int32_t n = 1) {
    auto recording = std::make_shared<Recording>();
    Request request = Greedy(std::move(prompt), max_tokens.value_or(kModelLength));
    if (!max_tokens) request.max_tokens.reset();
    request.request_id = absl::StrCat("r", next_request_++);
    request.cache_salt = salt;
    request.n = n;
    const int64_t total = max_tokens ? static_cast<int64_t>(request.prompt.size()) + *max_tokens : kModelLength;
    loop_->Accept(std::make_unique<LiveRequest>(std::move(request), std::make_unique<RecordingSink>(recording),
                                                clock_.Now(), total));
    return recording;
  }
  /// Hands the loop what it was told.
  void Pump() {
    std::vector<LoopMessage> messages;
    {
      absl::MutexLock lock(&mutex_);
      messages = std::exchange(messages_, {});
    }
    for (const LoopMessage& message : messages) loop_->Handle(message);
  }
  /// Donors copy in what was stored, and say so.
  /// Those begun since, or the first `most` of all.
  void LandStores(size_t most = std::numeric_limits<size_t>::max()) {
    const auto stores = transport_.stores();
    for (; landed_ < std::min(most, stores.size()); ++landed_) {
      const absl::Status answer = store_answer;
      if (answer.ok()) transport_.Land(stores[landed_]);
      coordinator_.OnStored(stores[landed_].ticket, answer);
    }
    Pump();
  }
  absl::Status store_answer;

  void RunAll() {
    for (int rounds = 0; loop_->has_work(); ++rounds) {
      ASSERT_LT(rounds, 5000) << "no progress";
      Pump();
      if (!loop_->Step()) WaitForWord();
      LandStores();
      loop_->ServeBetweenSteps();
      const absl::Status status = loop_->CheckInvariants();
      ASSERT_TRUE(status.ok()) << status;
    }
    Settle();
  }
  /// One conversation of Prompt(1), Prompt(2), ... after the other.
  void Converse(unsigned conversations, int64_t output_tokens) {
    for (unsigned seed = 1; seed <= conversations; ++seed) {
      (void)Add(Prompt(seed), output_tokens);
      RunAll();
    }
  }
  /// Spills that the last step left wishing for.
  void Settle() {
    for (int i = 0; i < 3; ++i) {
      loop_->ServeBetweenSteps();
      LandStores();
    }
  }
  /// Until the coordinator has done all that it was told before.
  void AwaitCoordinator() {
    coordinator_.ReportWindow({.used_blocks = -++marks_});
    ASSERT_TRUE(broker_.WaitForMark(marks_));
  }
  /// False: `condition` did not become true, whatever the coordinator said.
  bool PumpUntil(const std::function<bool()>& condition) {
    const absl::Time give_up = absl::Now() + CallLog::kPatience;
    while (!condition()) {
      if (absl::Now() > give_up) return false;
      WaitForWord();
      Pump();
      loop_->ServeBetweenSteps();
      LandStores();
    }
    return true;
  }

  StepLoop& loop() { return *loop_; }
  /// Of the engine.
  std::byte* own_memory() { return memory_->arena().base(); }
  FakeClock& clock() { return clock_; }
  /// How often the loop asked for the time: a measure of what it looks at.
  int64_t times_asked() const { return loop_clock_.asked; }
  transport::FakeTransport& transport() { return transport_; }
  coordinator::Coordinator& coordinator() { return coordinator_; }
  const coordinator::RecordingLeaseBroker& broker() const { return broker_; }
  const CallLog& heard() const { return heard_; }
  /// Of leases, at the broker.
  int64_t num_requests() const {
    const std::vector<std::string> calls = broker_.log().calls();
    return std::count_if(calls.begin(), calls.end(), [](const auto& call) { return call.starts_with("Request "); });
  }
  EngineLoad load() const { return loop_->load(); }
  std::string scrape() const { return registry_.Serialize(); }
  const FakeModelOptions& model() const { return model_; }
  int64_t block_bytes() const { return block_bytes_; }
  /// Of the last step.
  int64_t rows() const { return rows_; }

 private:
  struct LoopClock final : Clock {
    explicit LoopClock(const Clock* clock) : clock(*clock) {}
    absl::Time Now() const override {
      ++asked;
      return clock.Now();
    }
    const Clock& clock;
    mutable int64_t asked = 0;
  };
  void OnStarted(const LiveRequest& request) override {
    if (on_started) on_started(request);
  }
  void OnEnded(const LiveRequest& request) override {
    if (on_ended) on_ended(request);
  }
  void OnLoad(const EngineLoad&) override {}
  void OnDeviceLost(const absl::Status&) override {}
  void Deliver(OutboundBatch batch) override { CallSinks(std::move(batch), &metrics_); }

  void Push(LoopMessage message) {
    const std::string name = std::visit(coordinator::MessageNamer(), message);
    urgency_.Note(message, clock_.Now());
    {
      absl::MutexLock lock(&mutex_);
      messages_.push_back(std::move(message));
    }
    heard_.Add(name);
  }
  // A moment, or less if the coordinator says something.
  void WaitForWord() {
    const auto spoken = [this] {
      mutex_.AssertHeld();
      return !messages_.empty();
    };
    absl::MutexLock lock(&mutex_);
    mutex_.AwaitWithTimeout(absl::Condition(&spoken), absl::Milliseconds(5));
  }

  const FakeModelOptions model_;
  const int64_t block_bytes_;
  FakeClock clock_;
  LoopClock loop_clock_{&clock_};
  Metrics registry_;
  EngineMetrics metrics_;
  transport::FakeTransport transport_;
  coordinator::RecordingLeaseBroker broker_;
  CallLog heard_;
  Urgency urgency_;
  absl::Mutex mutex_;
  std::vector<LoopMessage> messages_ ABSL_GUARDED_BY(mutex_);
  coordinator::Coordinator coordinator_;
  LateQueue queue_{{}};
  LateKvMemory* memory_ = nullptr;
  std::unique_ptr<StepLoop> loop_;
  size_t landed_ = 0;
  int64_t next_request_ = 0, marks_ = 0, rows_ = 0;
};

}  // namespace swiftcache::engine::exec
