// SPDX-License-Identifier: Apache-2.0
#include <cstdlib>
#include <utility>

#include "engine/backend/cuda/native/cuda_driver.h"
#include "engine/backend/cuda/native/cuda_kernels.h"
#include "tests/fakes/test_gpu.h"

namespace swiftcache::engine::backend::cuda {
namespace {

class RealTestGpu final : public TestGpu {
 public:
  explicit RealTestGpu(std::unique_ptr<Driver> driver) : driver_(std::move(driver)) {}
  Driver& driver() override { return *driver_; }
  bool IsReal() const override { return true; }
  // Under a sanitizer a case takes a hundred times as long.
  int64_t Cases(int64_t all) const override {
    return std::getenv("SWIFTCACHE_TEST_FEW_CASES") != nullptr ? all / 20 : all;
  }
  std::unique_ptr<Kernels> MakeKernels() override {
    auto kernels = CudaKernels::Create(*driver_);
    EXPECT_TRUE(kernels.ok()) << kernels.status();
    return kernels.ok() ? *std::move(kernels) : nullptr;
  }

 private:
  const std::unique_ptr<Driver> driver_;
};

}  // namespace

std::unique_ptr<TestGpu> OpenTestGpu() {
  auto driver = OpenDriver();
  if (!driver.ok()) return nullptr;
  return std::make_unique<RealTestGpu>(*std::move(driver));
}

std::string WhyNoTestGpu() { return std::string(OpenDriver().status().message()); }

}  // namespace swiftcache::engine::backend::cuda
