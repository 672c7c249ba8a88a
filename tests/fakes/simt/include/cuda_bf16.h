// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "engine/backend/bf16.h"
#include "tests/fakes/simt/include/cuda_runtime.h"

struct __nv_bfloat16 {
  uint16_t bits;
  operator float() const { return swiftcache::engine::backend::FromBf16(bits); }
};
