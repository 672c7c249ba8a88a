// SPDX-License-Identifier: Apache-2.0
#include "engine/loader/tensor_overlap.h"

#include <algorithm>
#include <functional>

#include "engine/loader/errors.h"

namespace swiftcache::engine::loader {

absl::Status CheckNoOverlap(const std::string& file, std::vector<TensorBytes> tensors) {
  std::erase_if(tensors, [](const TensorBytes& tensor) { return tensor.data.empty(); });
  std::sort(tensors.begin(), tensors.end(), [](const TensorBytes& a, const TensorBytes& b) {
    return std::less<const std::byte*>()(a.data.data(), b.data.data());
  });
  for (size_t i = 1; i < tensors.size(); ++i) {
    const TensorBytes& before = tensors[i - 1];
    if (tensors[i].data.data() < before.data.data() + before.data.size()) {
      return Malformed(file, "tensors ", Quoted(before.name), " and ", Quoted(tensors[i].name), " overlap");
    }
  }
  return absl::OkStatus();
}

}  // namespace swiftcache::engine::loader
