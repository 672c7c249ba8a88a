// SPDX-License-Identifier: Apache-2.0
// How the KV of a block lies in memory: block-major (ARCHITECTURE.md, block-major layout).
//
//   block  = [num_layers][slice]                                one contiguous run of block_bytes()
//   slice  = the part of one layer, slice_bytes():
//
//   | begins at                           | bytes                       | what                                          |
//   |---|---|---|
//   | 0                                   | part_bytes()                | K [kv_heads][block_tokens * head_dim]         |
//   | part_bytes()                        | the same                    | V, likewise                                   |
//   | 2 x part_bytes()                    | scale_bytes()               | int8: scales of K, f32 [kv_heads][block_tokens] |
//   | the same + scale_bytes()            | scale_bytes()               | int8: scales of V, likewise                   |
//
// Attention reads head by head: so what it reads of a block at a time is one run (ARCHITECTURE.md, decision 30). In which
// order a head's elements lie there is a matter of the backend alone: on GPUs [block_tokens][head_dim], on CPUs as
// cpu/kv_tiles.h says. Whoever moves KV moves whole slices.
// An element of int8 stands for itself times the scale of its token and KV head: largest / 127 of the head's elements.
// So a token is stored without a look at its neighbours, and is never stored anew.
#pragma once

#include <cstdint>

namespace swiftcache::engine::backend {

enum class KvDtype { kBf16, kF32, kInt8 };

constexpr int64_t BytesOf(KvDtype dtype) { return dtype == KvDtype::kBf16 ? 2 : dtype == KvDtype::kF32 ? 4 : 1; }

/// As the flag and the broker write it.
constexpr const char* NameOf(KvDtype dtype) {
  return dtype == KvDtype::kBf16 ? "bf16" : dtype == KvDtype::kF32 ? "f32" : "int8";
}

/// The shape of a block. Thread-safety: a value. Units: bytes where named so.
struct KvLayout {
  int64_t num_layers = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;
  int64_t block_tokens = 0;
  KvDtype dtype = KvDtype::kBf16;

  /// Bytes of one head of K (or V) of one token in one layer, without its scale.
  constexpr int64_t row_bytes() const { return head_dim * BytesOf(dtype); }
  /// Bytes of K (or V) of one layer, without scales.
  constexpr int64_t part_bytes() const { return num_kv_heads * block_tokens * row_bytes(); }
  /// Bytes of the scales of K (or V) in one layer.
  constexpr int64_t scale_bytes() const { return dtype == KvDtype::kInt8 ? num_kv_heads * block_tokens * 4 : 0; }
  /// M_block of SwiftCache eq. 1.
  constexpr int64_t slice_bytes() const { return 2 * (part_bytes() + scale_bytes()); }
  constexpr int64_t block_bytes() const { return num_layers * slice_bytes(); }
  friend bool operator==(const KvLayout&, const KvLayout&) = default;
};

static_assert(KvLayout{30, 3, 64, 16, KvDtype::kBf16}.slice_bytes() == 2 * 16 * 3 * 64 * 2);
static_assert(KvLayout{30, 3, 64, 16, KvDtype::kInt8}.slice_bytes() == 2 * (16 * 3 * 64 + 3 * 16 * 4));

}  // namespace swiftcache::engine::backend
