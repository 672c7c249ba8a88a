// SPDX-License-Identifier: Apache-2.0
#include "engine/backend/cuda/uploads.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "tests/engine/backend/cuda/cuda_harness.h"

namespace swiftcache::engine::backend::cuda {
namespace {

constexpr int64_t kChunk = 1 << 20;  // of uploads
constexpr int64_t kRow = 16 * kChunk;

// Memory, of the device and of the host, begins where what was allocated before ends.
class AdjacentDriver final : public FakeCudaDriver {
 public:
  using FakeCudaDriver::FakeCudaDriver;
  ~AdjacentDriver() override {
    EXPECT_TRUE(device_ == 0 || FakeCudaDriver::FreeAddresses(device_, kRow).ok());
    EXPECT_TRUE(host_ == nullptr || FakeCudaDriver::FreeHost(host_).ok());
    ExpectClean(*this);
  }
  absl::StatusOr<uint64_t> ReserveAddresses(int64_t bytes) override {
    if (device_ == 0) device_ = FakeCudaDriver::ReserveAddresses(kRow).value();
    return device_ + static_cast<uint64_t>(std::exchange(device_used_, device_used_ + bytes));
  }
  absl::Status FreeAddresses(uint64_t, int64_t) override { return absl::OkStatus(); }
  absl::StatusOr<std::byte*> AllocateHost(int64_t bytes) override {
    if (host_ == nullptr) host_ = FakeCudaDriver::AllocateHost(kRow).value();
    return host_ + std::exchange(host_used_, host_used_ + bytes);
  }
  absl::Status FreeHost(std::byte*) override { return absl::OkStatus(); }

 private:
  uint64_t device_ = 0;
  std::byte* host_ = nullptr;
  int64_t device_used_ = 0, host_used_ = 0;
};

class UploadsTest : public testing::Test {
 protected:
  ~UploadsTest() override { driver_.DestroyStream(stream_); }
  void Put(int64_t bytes) {
    const std::vector<std::byte> array(bytes, std::byte{++arrays_});
    const std::byte* const at = uploads_.Put(std::span(array)).value();
    put_.push_back({reinterpret_cast<uint64_t>(at), array});
  }
  // The bytes of each copy. All that was put has arrived afterwards.
  std::vector<int64_t> Send() {
    copies_.clear();
    EXPECT_TRUE(uploads_.Send(stream_).ok());
    driver_.Finish(stream_);
    for (const auto& [address, array] : put_) {
      EXPECT_EQ(std::memcmp(FakeCudaDriver::Host(address), array.data(), array.size()), 0);
    }
    return copies_;
  }

  std::vector<int64_t> copies_;
  uint8_t arrays_ = 0;
  std::vector<std::pair<uint64_t, std::vector<std::byte>>> put_;
  AdjacentDriver driver_{{.on_copy = [this](const DeviceCopy& copy) { copies_.push_back(copy.bytes); }}};
  const Stream stream_ = driver_.CreateStream().value();
  Uploads uploads_{driver_};
};

TEST_F(UploadsTest, WhatWasPutSinceTheLastSendIsOneCopy) {
  Put(100);
  Put(0);
  Put(256);
  Put(1);
  EXPECT_EQ(Send(), std::vector<int64_t>({2 * 256 + 1}));
  EXPECT_EQ(Send(), std::vector<int64_t>());
  Put(7);
  Put(9);
  EXPECT_EQ(Send(), std::vector<int64_t>({256 + 9}));
}

TEST_F(UploadsTest, AnArrayThatGrowsFromStepToStepSeldomTakesMemory) {
  ASSERT_TRUE(uploads_.Reserve().ok());
  int64_t allocations = driver_.allocations();
  Put(kChunk);
  EXPECT_EQ(driver_.allocations(), allocations);
  Put(kChunk + 1);
  EXPECT_GT(std::exchange(allocations, driver_.allocations()), 0);
  for (int64_t more = 1; more <= kChunk; more *= 2) {
    uploads_.Begin();
    put_.clear();
    Put(kChunk + more);
    (void)Send();
  }
  EXPECT_EQ(driver_.allocations(), allocations);
}

TEST_F(UploadsTest, NoCopyReachesIntoTheNextChunk) {
  for (const int64_t last : {kChunk - 256, kChunk - 300}) {  // up to the end of the chunk, and nearly so
    Put(256);
    Put(last);
    Put(10);
    EXPECT_EQ(put_.back().first, put_.front().first + kChunk);  // where the next one begins
    EXPECT_EQ(Send(), std::vector<int64_t>({256 + last, 10}));
    uploads_.Begin();
    put_.clear();
  }
}

}  // namespace
}  // namespace swiftcache::engine::backend::cuda
