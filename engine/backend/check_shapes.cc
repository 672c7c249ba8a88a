// SPDX-License-Identifier: Apache-2.0
#include "engine/backend/check_shapes.h"

#include <cstdint>

#include "absl/strings/str_cat.h"

namespace swiftcache::engine::backend {

absl::Status CheckShapes(const AttentionShape& shape, const KvLayout& kv, size_t num_frequencies) {
  if (shape.num_kv_heads < 1 || shape.num_heads < 1 || shape.num_heads % shape.num_kv_heads != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("num_heads is ", shape.num_heads, ", wanted a multiple of the ", shape.num_kv_heads, " KV heads"));
  }
  if (shape.head_dim < 2 || shape.head_dim % 2 != 0) {
    return absl::InvalidArgumentError(absl::StrCat("head_dim is ", shape.head_dim, ", wanted an even number"));
  }
  if (kv.num_kv_heads != shape.num_kv_heads || kv.head_dim != shape.head_dim || kv.block_tokens < 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "KV layout of ", kv.num_kv_heads, " heads of ", kv.head_dim, " with blocks of ", kv.block_tokens,
        " tokens, wanted ", shape.num_kv_heads, " heads of ", shape.head_dim, " and at least one token a block"));
  }
  if (static_cast<int64_t>(num_frequencies) != shape.head_dim / 2) {
    return absl::InvalidArgumentError(absl::StrCat(num_frequencies, " rope frequencies, wanted ", shape.head_dim / 2));
  }
  return absl::OkStatus();
}

}  // namespace swiftcache::engine::backend
