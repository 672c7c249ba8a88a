// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "tests/fakes/simt/include/cuda_runtime.h"

namespace swiftcache::engine::backend::cuda {

inline absl::Status CudaStatus(cudaError_t error, absl::string_view what) {
  return error == cudaSuccess ? absl::OkStatus() : absl::InternalError(absl::StrCat(what, ": emulated error ", error));
}

}  // namespace swiftcache::engine::backend::cuda
