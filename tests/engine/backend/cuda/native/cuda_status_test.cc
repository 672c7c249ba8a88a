// SPDX-License-Identifier: Apache-2.0
#include "engine/backend/cuda/native/cuda_status.h"

#include <gtest/gtest.h>

#include "engine/backend/device.h"

namespace swiftcache::engine::backend::cuda {
namespace {

absl::Status Of(int error) { return CudaStatus(static_cast<cudaError_t>(error), "a call"); }

// By CUDA's numbers, since 12.4 has no names for some: all of which cuda.h says that the process must be relaunched, and
// those that tell that there is no MPS server behind this process any more.
TEST(CudaStatusTest, AnErrorAfterWhichNothingWorksIsALostDevice) {
  for (const int error : {/*contained*/ 226, /*illegal address*/ 700, /*launch timeout*/ 702, /*hardware stack*/ 714,
                          /*illegal instruction*/ 715, /*misaligned address*/ 716, /*invalid address space*/ 717,
                          /*invalid pc*/ 718, /*launch failed*/ 719, /*tensor memory leak*/ 721,
                          /*no way to MPS's server*/ 805, /*MPS's server does not answer*/ 806,
                          /*MPS client terminated*/ 810, /*external device*/ 911}) {
    EXPECT_TRUE(IsDeviceLost(Of(error))) << error << ": " << Of(error);
  }
}

TEST(CudaStatusTest, AnErrorOfOneCallIsNoLostDevice) {
  EXPECT_TRUE(Of(cudaSuccess).ok());
  EXPECT_EQ(Of(cudaErrorMemoryAllocation).code(), absl::StatusCode::kResourceExhausted);
  for (const int error :
       {/*invalid value*/ 1, /*cooperative launch too large*/ 720, /*MPS takes no process just now*/ 807,
        /*MPS takes no process more*/ 808, /*MPS has no connection left*/ 809}) {
    EXPECT_EQ(Of(error).code(), absl::StatusCode::kInternal) << error;
  }
}

}  // namespace
}  // namespace swiftcache::engine::backend::cuda
