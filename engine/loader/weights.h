// SPDX-License-Identifier: Apache-2.0
// A checkpoint's tensors as they lie in memory-mapped files, under one set of names.
//
//   ASSIGN_OR_RETURN(const backend::WeightSource* q, weights.Find("model.layers.0.self_attn.q_proj.weight"));
//   ASSIGN_OR_RETURN(std::unique_ptr<backend::Matrix> matrix, backend.PackMatrix({q, 1}, backend::Exactness::kHigh));
#pragma once

#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "engine/backend/weight_source.h"

namespace swiftcache::engine::loader {

/// Every tensor that the architecture wants, present and of the right shape, under Hugging Face's names
/// ("model.embed_tokens.weight", "model.layers.N.self_attn.q_proj.weight", "model.norm.weight", "lm_head.weight", ...;
/// tied models have no lm_head.weight). Rows are addressed in Hugging Face's order, whichever order the file has.
/// Thread-safety: immutable. Ownership: owns the mappings that the sources borrow. Errors: all sizes were checked when
/// the file was opened.
class Weights {
 public:
  virtual ~Weights() = default;
  /// NOT_FOUND names the tensor.
  absl::StatusOr<const backend::WeightSource*> Find(const std::string& name) const;
  const std::map<std::string, backend::WeightSource>& tensors() const { return tensors_; }

 protected:
  std::map<std::string, backend::WeightSource> tensors_;
};

}  // namespace swiftcache::engine::loader
