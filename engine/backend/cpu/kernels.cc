// SPDX-License-Identifier: Apache-2.0
#include "engine/backend/cpu/kernels.h"

namespace swiftcache::engine::backend::cpu {

Kernels KernelsFor(Isa isa) {
  Kernels kernels;
  SetGemmKernels(isa, kernels);
  SetQuantizedKernels(isa, kernels);
  SetRowKernels(isa, kernels);
  SetAttentionKernels(isa, kernels);
  if (isa == Isa::kAvx512Bf16) {
    kernels.gemm_bf16 = GemmAvx512Bf16;
    kernels.quantized_bf16 = QuantizedAvx512Bf16;
  }
  return kernels;
}

}  // namespace swiftcache::engine::backend::cpu
