// SPDX-License-Identifier: Apache-2.0
#include "engine/loader/weights.h"

#include "absl/strings/str_cat.h"
#include "engine/loader/dequantize.h"

namespace swiftcache::engine::loader {

void TensorView::DequantizeRow(int64_t r, float* out) const { loader::DequantizeRow(type, Row(r), cols, out); }

absl::StatusOr<const TensorView*> Weights::Find(const std::string& name) const {
  const auto it = tensors_.find(name);
  if (it == tensors_.end()) return absl::NotFoundError(absl::StrCat("no tensor ", name));
  return &it->second;
}

}  // namespace swiftcache::engine::loader
