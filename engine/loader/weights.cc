// SPDX-License-Identifier: Apache-2.0
#include "engine/loader/weights.h"

#include "absl/strings/str_cat.h"

namespace swiftcache::engine::loader {

absl::StatusOr<const backend::WeightSource*> Weights::Find(const std::string& name) const {
  const auto it = tensors_.find(name);
  if (it == tensors_.end()) return absl::NotFoundError(absl::StrCat("no tensor ", name));
  return &it->second;
}

}  // namespace swiftcache::engine::loader
