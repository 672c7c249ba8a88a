// SPDX-License-Identifier: Apache-2.0
#include "engine/backend/cpu/kernels.h"

namespace swiftcache::engine::backend::cpu {
namespace {

decltype(Kernels::quantized_int8) Int8KernelFor(Isa isa) {
  switch (isa) {
    case Isa::kBaseline:
      return nullptr;
    case Isa::kAvx2:
      return Int8Avx2;
    case Isa::kAvxVnni:
      return Int8AvxVnni;
    case Isa::kAvx512:
      return Int8Avx512;
    case Isa::kAvx512Vnni:
    case Isa::kAvx512Bf16:
    case Isa::kAmx:
      return Int8Avx512Vnni;
  }
  return nullptr;
}

}  // namespace

Kernels KernelsFor(Isa isa) {
  Kernels kernels;
  SetGemmKernels(isa, kernels);
  SetQuantizedKernels(isa, kernels);
  kernels.quantized_int8 = Int8KernelFor(isa);
  SetRowKernels(isa, kernels);
  SetAttentionKernels(isa, kernels);
  if (isa == Isa::kAmx) {
    kernels.gemm_bf16 = GemmAmx;
    kernels.quantized_bf16 = QuantizedAmx;
  } else if (MultipliesBf16(isa)) {
    kernels.gemm_bf16 = GemmAvx512Bf16;
    kernels.quantized_bf16 = QuantizedAvx512Bf16;
  }
  return kernels;
}

}  // namespace swiftcache::engine::backend::cpu
