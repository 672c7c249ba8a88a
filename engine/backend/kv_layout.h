// SPDX-License-Identifier: Apache-2.0
// How the KV of a block lies in memory: block-major (ARCHITECTURE.md, block-major layout).
//
//   block  = [num_layers][slice]                                one contiguous run of block_bytes()
//   slice  = [2 (k, v)][block_tokens][kv_heads][head_dim]       the part of one layer, slice_bytes()
#pragma once

#include <cstdint>

namespace swiftcache::engine::backend {

enum class KvDtype { kBf16, kF32 };

constexpr int64_t BytesOf(KvDtype dtype) { return dtype == KvDtype::kBf16 ? 2 : 4; }

/// The shape of a block. Thread-safety: a value. Units: bytes where named so.
struct KvLayout {
  int64_t num_layers = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;
  int64_t block_tokens = 0;
  KvDtype dtype = KvDtype::kBf16;

  /// Bytes of K (or V) of one token in one layer.
  constexpr int64_t row_bytes() const { return num_kv_heads * head_dim * BytesOf(dtype); }
  /// M_block of SwiftCache eq. 1.
  constexpr int64_t slice_bytes() const { return 2 * block_tokens * row_bytes(); }
  constexpr int64_t block_bytes() const { return num_layers * slice_bytes(); }
  friend bool operator==(const KvLayout&, const KvLayout&) = default;
};

}  // namespace swiftcache::engine::backend
