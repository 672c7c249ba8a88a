// SPDX-License-Identifier: Apache-2.0
// The driver of a GPU that is there. CUDA's runtime is linked in, the driver's own functions are looked up: a binary with
// this in it starts on a machine without a GPU, and says so here.
//
//   ASSIGN_OR_RETURN(std::unique_ptr<Driver> driver, OpenDriver());
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "engine/backend/cuda/driver.h"

namespace swiftcache::engine::backend::cuda {

/// The first GPU that CUDA_VISIBLE_DEVICES leaves. UNAVAILABLE: no GPU, no driver, or one too old; FAILED_PRECONDITION: a
/// GPU that this build has no kernels for, or cannot use. Each says what was found and the remedy.
absl::StatusOr<std::unique_ptr<Driver>> OpenDriver();

}  // namespace swiftcache::engine::backend::cuda
