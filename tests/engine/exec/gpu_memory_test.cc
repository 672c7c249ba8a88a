// SPDX-License-Identifier: Apache-2.0
// How engines that start together divide the memory of one GPU.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/time/clock.h"
#include "common/base/units.h"
#include "engine/backend/cuda/cuda_device.h"
#include "engine/backend/cuda/device_memory.h"
#include "engine/exec/engine_memory.h"
#include "engine/memory/start_turn.h"
#include "tests/fakes/fake_cuda_driver.h"
#include "tests/fakes/temp_folder.h"

namespace swiftcache::engine::exec {
namespace {

using backend::cuda::CudaDevice;
using backend::cuda::DeviceBytes;
using backend::cuda::FakeCudaDriver;
using memory::StartTurn;

constexpr models::ModelGeometry kGeometry = {
    .num_layers = 4, .num_kv_heads = 4, .head_dim = 64, .vocab_size = 40, .max_context_tokens = 1 << 20};
constexpr int64_t kTotal = 256 * kMiB, kWeights = 16 * kMiB;

// An engine as far as its start takes memory of the GPU, in the order of services/engine_main.cc: Load.
class StartingEngine {
 public:
  StartingEngine(FakeCudaDriver& driver, const std::string& folder, const CudaDevice::Options& options = {})
      : driver_(driver), folder_(folder) {
    auto device = CudaDevice::Create(options, driver, /*kernels=*/nullptr);
    EXPECT_TRUE(device.ok()) << device.status();
    if (device.ok()) device_ = *std::move(device);
  }
  absl::StatusOr<StartTurn> TakeTurn(const std::function<bool()>& unwanted = [] { return false; }) {
    return StartTurn::Take({.folder = folder_, .device_id = device_->memory()->id, .holder = "engine"}, unwanted);
  }
  absl::Status LoadWeights() {
    auto weights = DeviceBytes::Allocate(driver_, kWeights);
    if (weights.ok()) weights_ = *std::move(weights);
    return weights.status();
  }
  absl::Status TakeKvMemory(double utilization, bool share = false) {
    auto memory = CreateEngineMemory({.gpu_memory_utilization = utilization, .share = share}, kGeometry, *device_);
    if (memory.ok()) memory_ = *std::move(memory);
    return memory.status();
  }
  int64_t kv_bytes() const { return memory_.kv == nullptr ? 0 : memory_.kv->bytes(); }

 private:
  FakeCudaDriver& driver_;
  const std::string folder_;
  std::unique_ptr<backend::Device> device_;
  DeviceBytes weights_;
  EngineMemory memory_;
};

class GpuMemoryTest : public ::testing::Test {
 protected:
  ~GpuMemoryTest() override {
    EXPECT_EQ(driver_.Misuse(), "");
    EXPECT_EQ(driver_.Leaks(), "");
  }
  FakeCudaDriver driver_{{.total_bytes = kTotal}};
  const TempFolder temp_folder_;
  const std::string folder_ = temp_folder_.path();
};

TEST_F(GpuMemoryTest, WhoStartsSecondOnAGpuSizesItsMemoryByWhatTheFirstHasTaken) {
  StartingEngine first(driver_, folder_), second(driver_, folder_);
  auto turn = first.TakeTurn();
  ASSERT_TRUE(turn.ok()) << turn.status();
  ASSERT_TRUE(first.LoadWeights().ok());
  std::atomic<int> looks = 0;
  std::atomic<bool> has_turn = false;
  std::thread other([&] {
    const auto next = second.TakeTurn([&] { return ++looks > 1'000'000; });
    has_turn = true;
    EXPECT_TRUE(next.ok()) << next.status();
    EXPECT_TRUE(second.LoadWeights().ok());
    const absl::Status taken = second.TakeKvMemory(/*utilization=*/1.0);
    EXPECT_TRUE(taken.ok()) << taken;
  });
  while (looks < 2 && !has_turn) absl::SleepFor(absl::Milliseconds(1));
  EXPECT_FALSE(has_turn) << "before the first has memory of its own";
  EXPECT_EQ(driver_.memory()->free_bytes, kTotal - kWeights);
  EXPECT_TRUE(first.TakeKvMemory(/*utilization=*/0.5).ok());
  turn = StartTurn();
  other.join();
  EXPECT_EQ(first.kv_bytes(), kTotal / 2 - kWeights);
  EXPECT_EQ(second.kv_bytes(), kTotal - kTotal / 2 - kWeights);
  EXPECT_EQ(driver_.memory()->free_bytes, 0);
}

TEST_F(GpuMemoryTest, UnderALimitTheShareIsOfTheLimit) {
  const CudaDevice::Options limited = {.memory_limit =
                                           backend::cuda::MemoryLimit{.bytes = 64 * kMiB, .source = "LIMIT=64m"}};
  StartingEngine engine(driver_, folder_, limited);
  ASSERT_TRUE(engine.LoadWeights().ok());
  EXPECT_TRUE(engine.TakeKvMemory(/*utilization=*/0.5).ok());
  EXPECT_EQ(engine.kv_bytes(), 32 * kMiB - kWeights);
  const absl::Status full = engine.TakeKvMemory(/*utilization=*/0.5);
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(full.message().find(" of the device's 67108864 bytes of memory (LIMIT=64m); 33554432 are in use"),
            absl::string_view::npos)
      << full;
}

TEST_F(GpuMemoryTest, WhoShowsNobodyItsMemorySharesWhereTheDriverExportsNone) {
  FakeCudaDriver exports_none({.total_bytes = kTotal, .exports = false});
  StartingEngine shows(exports_none, folder_), sends(exports_none, folder_, {.shows_memory = false});
  const absl::Status shown = shows.TakeKvMemory(/*utilization=*/0.5, /*share=*/true);
  EXPECT_EQ(shown.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(shown.message().find("start this engine with --transport=nccl or none"), absl::string_view::npos) << shown;
  const absl::Status sent = sends.TakeKvMemory(/*utilization=*/0.5, /*share=*/true);
  EXPECT_TRUE(sent.ok()) << sent;
}

TEST_F(GpuMemoryTest, EnginesOfDifferentGpusDoNotWaitForEachOther) {
  FakeCudaDriver elsewhere({.uuid = "another", .total_bytes = kTotal});
  StartingEngine first(driver_, folder_), second(elsewhere, folder_);
  const auto turn = first.TakeTurn();
  const auto other = second.TakeTurn([] { return true; });
  EXPECT_TRUE(turn.ok() && other.ok()) << other.status();
}

}  // namespace
}  // namespace swiftcache::engine::exec
