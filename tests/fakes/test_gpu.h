// SPDX-License-Identifier: Apache-2.0
// The GPU of a test that runs on any: the fake driver with the kernels' bodies on the host (host_test_gpu.cc) or with the
// kernels themselves in emulated blocks of threads (simt/emulated_test_gpu.cc), or the GPU of this machine
// (tests/gpu/real_test_gpu.cc). Which one is linked, CMake says.
//
//   const std::unique_ptr<TestGpu> gpu = OpenTestGpu();
//   if (gpu == nullptr) GTEST_SKIP() << WhyNoTestGpu();
//   auto device = CudaDevice::Create(gpu->driver(), gpu->MakeKernels());
//   gpu->Write(kv->base(), values);
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/backend/cuda/cuda_address.h"
#include "engine/backend/cuda/driver.h"
#include "engine/backend/cuda/kernels.h"
#include "engine/backend/device_address.h"

namespace swiftcache::engine::backend::cuda {

/// Thread-safety: none. Ownership: owns the driver. Errors: end the test.
class TestGpu {
 public:
  virtual ~TestGpu() = default;
  virtual Driver& driver() = 0;
  virtual std::unique_ptr<Kernels> MakeKernels() = 0;
  /// Whether it is one, and fast.
  virtual bool IsReal() const { return false; }
  /// Whether a model takes seconds where it takes a fraction of one on another host.
  virtual bool IsSlow() const { return false; }
  /// How many of so many random cases it has the time for.
  virtual int64_t Cases(int64_t all) const { return all; }
  /// What was misused, or not given back; a real GPU does not tell.
  virtual std::string Faults() { return ""; }

  void Write(DeviceAddress to, std::span<const float> values) {
    Transfer(ToNumber(to), nullptr, const_cast<float*>(values.data()), values.size_bytes(), /*write=*/true);
  }
  std::vector<float> Read(DeviceAddress from, int64_t count) {
    std::vector<float> values(count);
    Transfer(ToNumber(from), values.data(), nullptr, count * int64_t{sizeof(float)}, /*write=*/false);
    return values;
  }

 private:
  void Transfer(uint64_t device, void* to, const void* from, int64_t bytes, bool write) {
    const auto stream = driver().CreateStream();
    const auto event = driver().CreateEvent();
    const auto pinned = driver().AllocateHost(bytes);
    ASSERT_TRUE(stream.ok() && event.ok() && pinned.ok());
    const auto host = reinterpret_cast<uint64_t>(*pinned);
    if (write) std::memcpy(*pinned, from, bytes);
    const DeviceCopy copy = write ? DeviceCopy{.to = device, .from = host, .bytes = bytes}
                                  : DeviceCopy{.to = host, .from = device, .bytes = bytes};
    ASSERT_TRUE(driver().Copy(*stream, {&copy, 1}).ok());
    ASSERT_TRUE(driver().Record(*event, *stream).ok());
    ASSERT_TRUE(driver().Synchronize(*event).ok());
    if (!write) std::memcpy(to, *pinned, bytes);
    driver().DestroyEvent(*event);
    driver().DestroyStream(*stream);
    ASSERT_TRUE(driver().FreeHost(*pinned).ok());
  }
};

/// Null where this machine has none that can be used.
std::unique_ptr<TestGpu> OpenTestGpu();
std::string WhyNoTestGpu();

}  // namespace swiftcache::engine::backend::cuda
