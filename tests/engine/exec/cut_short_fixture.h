// SPDX-License-Identifier: Apache-2.0
// An engine in the midst of whose steps leases are wanted back.
//
//   const auto reader = StartReader();
//   EXPECT_EQ(LayersRun(absl::Milliseconds(2), [&] { Revoke(absl::Milliseconds(60)); }), 3);
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/engine/exec/sharing_harness.h"

namespace swiftcache::engine::exec {

/// Of the next step that computes anything.
inline int64_t RowsOfNextStep(SharingHarness& harness) {
  for (int waits = 0; !harness.loop().Step(); ++waits) {
    if (waits == 1000) {
      ADD_FAILURE() << "no step begins";
      return 0;
    }
    harness.LandStores();
    harness.loop().ServeBetweenSteps();
  }
  return harness.rows();
}

/// An engine whose layers take `layer_time`, with blocks of its first conversation in a lease.
class CutShortTest : public testing::Test {
 protected:
  static constexpr int64_t kId = 7, kDeepLayers = 10;
  static constexpr int64_t kTokens = 8;  // of output
  explicit CutShortTest(LateQueue* device = nullptr, StreamMode stream = StreamMode::kInPlace)
      : harness_({.model = {.num_layers = kDeepLayers, .block_tokens = 4, .queue = device},
                  .num_blocks = 20,
                  .stream = stream}) {
    harness_.Borrow(kId, 64);
    harness_.Converse(4, kTokens);
  }
  /// Has its first token; those after it read the lease.
  std::shared_ptr<Recording> StartReader(unsigned seed = 1) {
    reader_prompt_ = harness_.Prompt(seed);
    reader_prompt_.push_back(5);
    auto reader = harness_.Add(reader_prompt_, kTokens);
    EXPECT_TRUE(harness_.loop().Step());
    return reader;
  }
  /// One step. `event` comes when so many of its layers are done.
  int64_t LayersRun(absl::Duration layer_time, const std::function<void()>& event, int64_t after = 3) {
    int64_t layers = 0;
    harness_.during_layer = [&](int64_t layer) {
      layers = layer + 1;
      harness_.clock().Advance(layer_time);
      if (layer == after - 1) event();
    };
    EXPECT_TRUE(harness_.loop().Step());
    harness_.during_layer = nullptr;
    return layers;
  }
  /// The same; the lease is revoked while the products of `layer` are computed.
  int64_t LayersRun(absl::Duration layer_time, int64_t layer, absl::Duration time_left) {
    harness_.during_products = [=, this](int64_t at) {
      if (at == layer) Revoke(time_left);
    };
    const int64_t layers = LayersRun(layer_time, [] {});
    harness_.during_products = nullptr;
    return layers;
  }
  /// That is computed by `run`; -1: none.
  int64_t FirstLayerOf(const std::function<void()>& run) {
    int64_t first = -1;
    harness_.during_layer = [&](int64_t layer) { first = first < 0 ? layer : first; };
    run();
    harness_.during_layer = nullptr;
    return first;
  }
  void AwaitTokens(const Recording& recording, size_t count) {
    ASSERT_TRUE(harness_.PumpUntil([&] { return harness_.loop().Turn(), recording.tokens().size() >= count; }));
  }
  void Revoke(absl::Duration time_left, int64_t id = kId) {
    harness_.coordinator().OnRevoked(kv::LeaseId(id), time_left);
    ASSERT_TRUE(harness_.heard().WaitFor(absl::StrCat("Drain ", id)));
  }
  /// As if each met another revocation of the lease.
  void RevokeBeforeEachStep() {
    Revoke(absl::Milliseconds(1));
    harness_.coordinator().step_reads().Handled(kv::LeaseId(kId));
  }
  void RevokeAndAwaitRelease(int64_t id = kId) {
    harness_.coordinator().OnRevoked(kv::LeaseId(id), absl::Milliseconds(50));
    ASSERT_TRUE(harness_.transport().log().WaitFor(absl::StrCat("SendRelease ", id))) << "at once";
  }
  /// Another conversation's: they are on their way, and do not land.
  void StartSpills() {
    (void)harness_.Add(harness_.Prompt(9), kTokens);
    const size_t landed = harness_.transport().stores().size();
    while (harness_.loop().has_work()) harness_.loop().Turn();
    harness_.loop().ServeBetweenSteps();
    ASSERT_GT(harness_.transport().stores().size(), landed);
  }
  void LoseDonor() {
    harness_.coordinator().OnDonorGone(kv::LeaseId(kId));
    ASSERT_TRUE(harness_.heard().WaitFor("Lose 7"));
  }
  void ExpectRight(const Recording& recording, const std::vector<int32_t>& prompt) {
    EXPECT_TRUE(recording.Wait().ok()) << recording.Wait();
    EXPECT_EQ(recording.tokens(), FakeGreedy(harness_.model(), prompt, kTokens));
  }

  SharingHarness harness_;
  std::vector<int32_t> reader_prompt_;
};

}  // namespace swiftcache::engine::exec
