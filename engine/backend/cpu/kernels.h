// SPDX-License-Identifier: Apache-2.0
// The inner loops, one set for each instruction set, as plain functions on rows and panels.
//
//   Kernels kernels = KernelsFor(BestIsa());
//   kernels.gemm_f32({.a = a, .lda = k, .b = panel, .k = k, .c = c, .ldc = n, .rows = m});
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "engine/backend/bf16.h"
#include "engine/backend/cpu/isa.h"

namespace swiftcache::engine::backend::cpu {

struct Int8Group;
struct QuantizedGemm;

/// Outputs that a panel of packed weights holds; rows of every Buffer are padded to a multiple of it.
inline constexpr int64_t kPanelCols = 32, kHalfCols = kPanelCols / 2;
/// Positions of an attention tile; tiles begin at multiples of it.
inline constexpr int64_t kTileTokens = 64;

constexpr int64_t PadToPanel(int64_t n) { return (n + kPanelCols - 1) / kPanelCols * kPanelCols; }

inline constexpr int64_t kCacheLineBytes = 64;

/// All cache lines of so many bytes.
template <int64_t kBytes>
__attribute__((always_inline)) inline void Prefetch(const std::byte* at) {
#pragma GCC unroll 4
  for (int64_t line = 0; line < kBytes; line += kCacheLineBytes) __builtin_prefetch(at + line);
}

/// Words of some inputs for outputs 0..15 and 16..31 of a panel: each [k][stride], of which 16 are read. A word is an
/// f32, or bf16 [2]: a pair of consecutive inputs.
struct PanelPiece {
  const void *low = nullptr, *high = nullptr;
};

/// Of packed weights, [k][32] words.
inline PanelPiece PackedPiece(const void* words) { return {words, static_cast<const uint32_t*>(words) + kHalfCols}; }

/// c[m][0..32) = sum over k of a[m][k] * b[k][0..32), in ascending k, from zero; then + bias, then + c if `add`.
struct PanelGemm {
  const void* a = nullptr;        // f32 [rows][lda], or bf16 [rows][lda] with zeroes up to a multiple of 32 inputs
  int64_t lda = 0;                // elements
  std::span<const PanelPiece> b;  // in the order of inputs; borrowed
  int64_t stride = kPanelCols;    // words
  int64_t ahead = 0;              // bytes by which b is prefetched at least, if it comes from memory, in one piece
  int64_t k = 0;                  // words of a piece: f32: inputs; bf16: pairs of inputs
  float* c = nullptr;             // f32 [rows][ldc]
  int64_t ldc = 0;
  int64_t rows = 0;
  const float* bias = nullptr;  // f32 [32] or nothing
  bool add = false;
};

/// A tile of scores becomes probabilities. Arrays are f32.
struct SoftmaxTile {
  float* scores = nullptr;          // [kTileTokens], in: scores; out: p = exp(score - new max), zero from `valid` on
  const float* k_scales = nullptr;  // [kTileTokens] or nothing: factors of the scores as they come in
  const float* v_scales = nullptr;  // [kTileTokens], with k_scales: factors of the p that go out, not of `sum`
  int64_t valid = 0;                // positions of the tile that the row may see, <= kTileTokens
  float* out = nullptr;             // [out_cols], scaled by exp(old max - new max)
  int64_t out_cols = 0;             // a multiple of kPanelCols
  float* max = nullptr;             // running maximum
  float* sum = nullptr;             // running sum of p
};

/// Rows are f32 [n] unless named otherwise. Rows that are written are written up to n rounded up to kPanelCols, with
/// zeroes beyond n; rows that are read must be readable that far.
struct Kernels {
  void (*gemm_f32)(const PanelGemm&) = nullptr;            // f32 a, f32 b
  void (*gemm_bf16_weights)(const PanelGemm&) = nullptr;   // f32 a, bf16 b, widened
  void (*gemm_bf16)(const PanelGemm&) = nullptr;           // bf16 a and b; of MultipliesBf16(isa)
  void (*quantized)(const QuantizedGemm&) = nullptr;       // f32 a
  void (*quantized_bf16)(const QuantizedGemm&) = nullptr;  // bf16 a; of MultipliesBf16(isa)
  void (*quantized_int8)(const QuantizedGemm&) = nullptr;  // Int8Group a; none on kBaseline
  void (*rms_norm)(const float* x, const float* weight, int64_t n, float eps, float* out) = nullptr;
  void (*silu_mul)(const float* gate, const float* up, int64_t n, float* out) = nullptr;
  void (*to_bf16)(const float* x, int64_t n, Bf16* out) = nullptr;
  /// x: [groups * 32]; for weights of this zero in blocks of so many inputs, 32 or 16.
  void (*to_int8)(const float* x, int64_t groups, int zero, int inputs, Int8Group* out) = nullptr;
  /// x[i] -= scale * code of what to_int8 made of it, rounded once; where there is no FMA, twice.
  void (*residual)(float* x, int64_t groups, const Int8Group* of_x) = nullptr;
  void (*softmax_tile)(const SoftmaxTile&) = nullptr;
  /// x as int8 times the scale that is returned, nearest with ties to even; writes n elements, of all zeroes zeroes. The
  /// scale is not finite where an element is not.
  float (*quantize)(const float* x, int64_t n, int8_t* out) = nullptr;
  /// As bf16, which holds each exactly; reads and writes n elements.
  void (*int8_to_bf16)(const int8_t* x, int64_t n, Bf16* out) = nullptr;
};

/// The fixed table of ISA to kernels. REQUIRES: the machine has `isa`.
Kernels KernelsFor(Isa isa);

// Parts of the table, each set by the file of that name.
void SetGemmKernels(Isa isa, Kernels& kernels);
void SetQuantizedKernels(Isa isa, Kernels& kernels);
void SetRowKernels(Isa isa, Kernels& kernels);
void SetAttentionKernels(Isa isa, Kernels& kernels);
void GemmAvx512Bf16(const PanelGemm& gemm);
void QuantizedAvx512Bf16(const QuantizedGemm& gemm);
void Int8Avx2(const QuantizedGemm& gemm);
void Int8AvxVnni(const QuantizedGemm& gemm);
void Int8Avx512(const QuantizedGemm& gemm);
void Int8Avx512Vnni(const QuantizedGemm& gemm);
void GemmAmx(const PanelGemm& gemm);
void QuantizedAmx(const QuantizedGemm& gemm);

}  // namespace swiftcache::engine::backend::cpu
