// SPDX-License-Identifier: Apache-2.0
// Refuses a file two of whose tensors share a byte: one of the two cannot be what the file's author meant.
//
//   RETURN_IF_ERROR(CheckNoOverlap(file, {{"a", data.subspan(0, 4)}, {"b", data.subspan(4, 4)}}));
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"

namespace swiftcache::engine::loader {

/// Ownership: borrows both.
struct TensorBytes {
  std::string_view name;
  std::span<const std::byte> data;
};

/// Tensors of no bytes overlap nothing. Errors: INVALID_ARGUMENT names the file and two tensors.
absl::Status CheckNoOverlap(const std::string& file, std::vector<TensorBytes> tensors);

}  // namespace swiftcache::engine::loader
