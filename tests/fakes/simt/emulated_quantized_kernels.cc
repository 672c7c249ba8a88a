// SPDX-License-Identifier: Apache-2.0
#include "engine/backend/cuda/native/quantized_kernels.cu"  // NOLINT
