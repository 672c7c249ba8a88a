// SPDX-License-Identifier: Apache-2.0
#include "engine/backend/cuda/native/exact_kernels.cu"  // NOLINT
