// SPDX-License-Identifier: Apache-2.0
// A checkpoint's tensors as views into memory-mapped files, under one set of names and in one row order.
//
//   ASSIGN_OR_RETURN(const TensorView* q, weights.Find("model.layers.0.self_attn.q_proj.weight"));
//   std::vector<float> row(q->cols());
//   q->DequantizeRow(5, row.data());
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace swiftcache::engine::loader {

/// Element formats. The quantised ones are GGML's blocks (32 or 256 elements a block).
enum class TensorType { kF32, kF16, kBf16, kQ8_0, kQ4_0, kQ4_1, kQ5_0, kQ5_1, kQ4_K, kQ5_K, kQ6_K };

/// A matrix [rows][cols] or a vector [rows = 1][cols], row-major, in its stored format.
/// GGUF's permuted q and k rows of Llama are addressed in Hugging Face's order: row r of the view is stored row
/// row_order[r]. Thread-safety: immutable. Ownership: borrows the mapping of the Weights it came from. Errors: none,
/// all sizes were checked when the file was opened.
class TensorView {
 public:
  TensorType type = TensorType::kF32;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t row_bytes = 0;
  const std::byte* data = nullptr;  // any alignment
  std::vector<int64_t> row_order;   // empty: as stored

  /// Stored bytes of row r, after row_order. REQUIRES: 0 <= r < rows.
  const std::byte* Row(int64_t r) const { return data + (row_order.empty() ? r : row_order[r]) * row_bytes; }
  /// Row r as f32. out: [cols].
  void DequantizeRow(int64_t r, float* out) const;
};

/// Every tensor that the architecture wants, present and of the right shape, under Hugging Face's names
/// ("model.embed_tokens.weight", "model.layers.N.self_attn.q_proj.weight", "model.norm.weight", "lm_head.weight", ...;
/// tied models have no lm_head.weight).
/// Thread-safety: immutable. Ownership: owns the mappings.
class Weights {
 public:
  virtual ~Weights() = default;
  /// NOT_FOUND names the tensor.
  absl::StatusOr<const TensorView*> Find(const std::string& name) const;
  const std::map<std::string, TensorView>& tensors() const { return tensors_; }

 protected:
  std::map<std::string, TensorView> tensors_;
};

}  // namespace swiftcache::engine::loader
