// SPDX-License-Identifier: Apache-2.0
// The kernels of a GPU, compiled as C++ for tests/fakes/simt/simt.h.
#include "engine/backend/cuda/native/kernels.cu"  // NOLINT
