// SPDX-License-Identifier: Apache-2.0
// Errors of CUDA's runtime and driver as absl::Status.
//
//   RETURN_IF_ERROR(CudaStatus(cudaEventRecord(event, stream), "cudaEventRecord"));
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include "absl/strings/string_view.h"

#include "absl/status/status.h"

namespace swiftcache::engine::backend::cuda {

/// OK, or the kinds that Driver names; the message has what was being done, and the error's name and text.
absl::Status CudaStatus(cudaError_t error, absl::string_view what);
absl::Status CudaStatus(CUresult error, absl::string_view what);

}  // namespace swiftcache::engine::backend::cuda
