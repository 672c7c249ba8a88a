// SPDX-License-Identifier: Apache-2.0
#include "engine/backend/cuda/native/cuda_status.h"

#include "absl/strings/str_cat.h"

namespace swiftcache::engine::backend::cuda {
namespace {

// The numbers of runtime and driver are the same for those that both have. CUDA 12.4 has no names for some of these.
constexpr int kContained = 226, kTensorMemoryLeak = 721, kMpsClientTerminated = 810, kExternalDevice = 911;

absl::StatusCode CodeOf(int error) {
  switch (error) {
    case CUDA_ERROR_OUT_OF_MEMORY:
      return absl::StatusCode::kResourceExhausted;
    case CUDA_ERROR_NO_DEVICE:
    case CUDA_ERROR_DEVICE_UNAVAILABLE:
    case CUDA_ERROR_SYSTEM_DRIVER_MISMATCH:
    case CUDA_ERROR_SYSTEM_NOT_READY:
    case cudaErrorInsufficientDriver:
      return absl::StatusCode::kUnavailable;
    case CUDA_ERROR_NOT_SUPPORTED:
    case CUDA_ERROR_NOT_PERMITTED:
    case CUDA_ERROR_NO_BINARY_FOR_GPU:
    case CUDA_ERROR_UNSUPPORTED_PTX_VERSION:
    case CUDA_ERROR_PEER_ACCESS_UNSUPPORTED:
    case CUDA_ERROR_INVALID_DEVICE:
      return absl::StatusCode::kFailedPrecondition;
    case CUDA_ERROR_ECC_UNCORRECTABLE:
    case CUDA_ERROR_ILLEGAL_ADDRESS:
    case CUDA_ERROR_LAUNCH_TIMEOUT:
    case CUDA_ERROR_LAUNCH_FAILED:
    case CUDA_ERROR_ASSERT:
    case CUDA_ERROR_HARDWARE_STACK_ERROR:
    case CUDA_ERROR_ILLEGAL_INSTRUCTION:
    case CUDA_ERROR_MISALIGNED_ADDRESS:
    case CUDA_ERROR_INVALID_ADDRESS_SPACE:
    case CUDA_ERROR_INVALID_PC:
    case CUDA_ERROR_NVLINK_UNCORRECTABLE:
    case CUDA_ERROR_CONTEXT_IS_DESTROYED:
    case CUDA_ERROR_DEINITIALIZED:
    case CUDA_ERROR_UNKNOWN:
    case kTensorMemoryLeak:
    case kContained:
    case CUDA_ERROR_MPS_CONNECTION_FAILED:
    case CUDA_ERROR_MPS_RPC_FAILURE:  // the server is gone, and all that it held for this process
    case kMpsClientTerminated:
    case kExternalDevice:
      return absl::StatusCode::kDataLoss;
    default:
      return absl::StatusCode::kInternal;
  }
}

}  // namespace

absl::Status CudaStatus(cudaError_t error, absl::string_view what) {
  if (error == cudaSuccess) return absl::OkStatus();
  (void)cudaGetLastError();  // it is told here: the next launch must not tell it again. One that stays comes back
  return absl::Status(CodeOf(error),
                      absl::StrCat(what, ": ", cudaGetErrorName(error), ", ", cudaGetErrorString(error)));
}

// Names of the driver's errors are the driver's, which may not be there: the number has to do.
absl::Status CudaStatus(CUresult error, absl::string_view what) {
  if (error == CUDA_SUCCESS) return absl::OkStatus();
  return CudaStatus(static_cast<cudaError_t>(error), what);
}

}  // namespace swiftcache::engine::backend::cuda
