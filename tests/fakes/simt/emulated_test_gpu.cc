// SPDX-License-Identifier: Apache-2.0
#include "engine/backend/cuda/native/cuda_kernels.h"
#include "tests/fakes/fake_cuda_driver.h"
#include "tests/fakes/test_gpu.h"

namespace swiftcache::engine::backend::cuda {
namespace {

class EmulatedTestGpu final : public TestGpu {
 public:
  Driver& driver() override { return driver_; }
  std::unique_ptr<Kernels> MakeKernels() override { return *CudaKernels::Create(driver_); }
  std::string Faults() override { return driver_.Misuse() + driver_.Leaks(); }
  bool IsSlow() const override { return true; }
  int64_t Cases(int64_t all) const override { return all / 20; }

 private:
  FakeCudaDriver driver_{{.total_bytes = 1 << 30, .host_addresses = true, .most_late_us = 20}};
};

}  // namespace

std::unique_ptr<TestGpu> OpenTestGpu() { return std::make_unique<EmulatedTestGpu>(); }
std::string WhyNoTestGpu() { return ""; }

}  // namespace swiftcache::engine::backend::cuda
