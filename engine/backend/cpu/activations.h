// SPDX-License-Identifier: Apache-2.0
// What the rows of a product are rounded to, where weights are not f32.
//
//   const CpuDeviceOptions options{.threads = 2, .activations = Activations::kInt8};
#pragma once

#include <optional>
#include <string_view>

namespace swiftcache::engine::backend::cpu {

/// kBf16: to bf16 where the processor multiplies it, not at all elsewhere. kInt8: to 8 bits beside quantised weights
/// (int8_row.h), elsewhere as kBf16; wants AVX2. kF32: not at all. kAuto: as kInt8 where there is AVX2, but for products
/// of Exactness::kHigh, which take Int8Rows::kTwice where that is faster (cpu_backend.cc: TwiceIsFaster), and else are as
/// with kBf16: so the logits' error is smaller than llama.cpp's (tests/bench). The weights' format, the instruction set,
/// the product's exactness and this decide alone.
enum class Activations { kAuto, kF32, kBf16, kInt8 };

/// "auto", "f32", "bf16", "int8"; nothing: another name.
inline std::optional<Activations> ActivationsOfName(std::string_view name) {
  if (name == "auto") return Activations::kAuto;
  if (name == "f32") return Activations::kF32;
  if (name == "bf16") return Activations::kBf16;
  if (name == "int8") return Activations::kInt8;
  return std::nullopt;
}

}  // namespace swiftcache::engine::backend::cpu
