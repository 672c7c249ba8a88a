// SPDX-License-Identifier: Apache-2.0
#include "tests/fakes/fake_cuda_driver.h"
#include "tests/fakes/host_kernels.h"
#include "tests/fakes/test_gpu.h"

namespace swiftcache::engine::backend::cuda {
namespace {

class HostTestGpu final : public TestGpu {
 public:
  Driver& driver() override { return driver_; }
  std::unique_ptr<Kernels> MakeKernels() override { return std::make_unique<HostKernels>(driver_); }
  std::string Faults() override { return driver_.Misuse() + driver_.Leaks(); }

 private:
  FakeCudaDriver driver_{{.total_bytes = 1 << 30, .most_late_us = 20}};
};

}  // namespace

std::unique_ptr<TestGpu> OpenTestGpu() { return std::make_unique<HostTestGpu>(); }
std::string WhyNoTestGpu() { return ""; }

}  // namespace swiftcache::engine::backend::cuda
