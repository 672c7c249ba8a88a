// SPDX-License-Identifier: Apache-2.0
#include "engine/exec/engine_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>

#include "tests/fakes/cpu.h"
#include "tests/fakes/fake_model.h"

namespace swiftcache::engine::exec {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

const FakeModelOptions kTinyBlocks = {.vocab_size = 40, .max_context_tokens = 400, .block_tokens = 4};

int64_t BlockBytes() { return kTinyBlocks.layout().block_bytes(); }

// A device with memory of its own, in which somebody else and the weights lie.
class RoomyDevice final : public backend::Device {
 public:
  explicit RoomyDevice(backend::DeviceMemory memory) : memory_(memory) {}
  void TakeForWeights(int64_t bytes) { memory_.free_bytes -= bytes; }

  std::string name() const override { return "roomy"; }
  std::optional<backend::DeviceMemory> memory() const override { return memory_; }
  absl::StatusOr<std::unique_ptr<backend::Backend>> CreateBackend(const backend::BackendOptions& options) override {
    return Cpu().CreateBackend(options);
  }
  absl::StatusOr<std::unique_ptr<backend::KvMemory>> CreateKvMemory(const backend::KvMemoryOptions& options) override {
    if (options.bytes > memory_.free_bytes) return absl::ResourceExhaustedError("the device has not so much");
    return Cpu().CreateKvMemory(options);
  }

 private:
  backend::DeviceMemory memory_;
};

class EngineMemoryTest : public ::testing::Test {
 protected:
  absl::StatusOr<EngineMemory> Create() {
    return CreateEngineMemory(options_, FakeModel(kTinyBlocks).geometry(), device_);
  }
  // Tokens of the longest request, where ten blocks are shared.
  int64_t LongestThatSharesTenBlocks() {
    options_.kv_cache_bytes = 10 * BlockBytes();
    options_.share = true;
    const auto memory = Create();
    EXPECT_TRUE(memory.ok()) << memory.status();
    return memory.ok() ? memory->max_model_len_tokens : -1;
  }

  EngineOptions options_ = {.block_tokens = kTinyBlocks.block_tokens};
  RoomyDevice device_{{.total_bytes = 1000 * BlockBytes(), .free_bytes = 990 * BlockBytes()}};
};

TEST_F(EngineMemoryTest, KvTakesOfTheDevicesShareWhatWeightsAndOthersLeave) {
  options_.gpu_memory_utilization = 0.75;
  device_.TakeForWeights(200 * BlockBytes());
  const auto memory = Create();
  ASSERT_TRUE(memory.ok()) << memory.status();
  EXPECT_EQ(memory->num_blocks(), 750 - 10 - 200);
  EXPECT_EQ(memory->layout, kTinyBlocks.layout());
  EXPECT_EQ(memory->max_model_len_tokens, kTinyBlocks.max_context_tokens);
}

TEST_F(EngineMemoryTest, NineTenthsAreTheDefaultShare) {
  const auto memory = Create();
  ASSERT_TRUE(memory.ok()) << memory.status();
  EXPECT_EQ(memory->num_blocks(), 900 - 10);
}

TEST_F(EngineMemoryTest, AllOfTheDeviceIsAShareToo) {
  options_.gpu_memory_utilization = 1;
  const auto memory = Create();
  ASSERT_TRUE(memory.ok()) << memory.status();
  EXPECT_EQ(memory->num_blocks(), 990);
}

TEST_F(EngineMemoryTest, BytesThatWereGivenOverruleTheShare) {
  options_.gpu_memory_utilization = 0.001;
  options_.kv_cache_bytes = 20 * BlockBytes();
  const auto memory = Create();
  ASSERT_TRUE(memory.ok()) << memory.status();
  EXPECT_EQ(memory->num_blocks(), 20);
  EXPECT_EQ(memory->max_model_len_tokens, 80);
}

TEST_F(EngineMemoryTest, WhereNothingIsLeftTheErrorNamesFlagValueFoundAndRemedy) {
  options_.gpu_memory_utilization = 0.5;
  for (const int64_t weights : {490, 700}) {  // none left, and more in use than the share
    RoomyDevice device({.total_bytes = 1000 * BlockBytes(), .free_bytes = (990 - weights) * BlockBytes()});
    const absl::Status status = CreateEngineMemory(options_, FakeModel(kTinyBlocks).geometry(), device).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_THAT(
        std::string(status.message()),
        AllOf(HasSubstr("--gpu_memory_utilization is 0.5, which allows " + std::to_string(500 * BlockBytes())),
              HasSubstr(std::to_string((10 + weights) * BlockBytes()) + " are in use"), HasSubstr("leaves 0 for KV"),
              HasSubstr("one block takes " + std::to_string(BlockBytes()) + ": raise it, or free memory")));
  }
}

TEST_F(EngineMemoryTest, ADeviceThatDoesNotSayWhatItHasLeavesItToTheOptionAndAGibibyte) {
  const backend::KvLayout layout = kTinyBlocks.layout();
  EXPECT_EQ(KvCacheBytes({.gpu_memory_utilization = 0.1}, layout, Cpu()).value(), int64_t{1} << 30);
  EXPECT_EQ(KvCacheBytes({.kv_cache_bytes = 5 * BlockBytes()}, layout, Cpu()).value(), 5 * BlockBytes());
}

TEST_F(EngineMemoryTest, LessThanABlockIsRefusedBeforeAnythingIsTaken) {
  options_.kv_cache_bytes = BlockBytes() - 1;
  const absl::Status status = KvCacheBytes(options_, kTinyBlocks.layout(), device_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("--kv_cache_bytes is " + std::to_string(BlockBytes() - 1)),
                    HasSubstr("takes " + std::to_string(BlockBytes()) + " bytes: give at least that")));
  EXPECT_EQ(Create().status(), status);
}

TEST_F(EngineMemoryTest, WithoutAPrefixCacheThereIsNothingToSpillAndLengthIsLimitedByOwnMemory) {
  options_.enable_prefix_caching = false;
  EXPECT_EQ(LongestThatSharesTenBlocks(), 40);
}

TEST_F(EngineMemoryTest, WhoDoesNotBorrowHoldsWhatItsOwnMemoryHolds) {
  options_.borrow = false;
  EXPECT_EQ(LongestThatSharesTenBlocks(), 40);
}

TEST_F(EngineMemoryTest, WhoBorrowsMayHoldMoreThanItsOwnMemory) {
  EXPECT_EQ(LongestThatSharesTenBlocks(), kTinyBlocks.max_context_tokens);
}

}  // namespace
}  // namespace swiftcache::engine::exec
