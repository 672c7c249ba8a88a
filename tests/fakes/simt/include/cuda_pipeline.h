// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "tests/fakes/simt/include/cuda_runtime.h"

inline void __pipeline_memcpy_async(void* to, const void* from, size_t bytes) {
  swiftcache::simt::BeginCopy(to, from, bytes);
}
inline void __pipeline_commit() { swiftcache::simt::CommitCopies(); }
inline void __pipeline_wait_prior(size_t batches) { swiftcache::simt::AwaitCopies(batches); }
