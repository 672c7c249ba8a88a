// SPDX-License-Identifier: Apache-2.0
// The structure of a safetensors file: its header, checked, and views of its tensors.
//
//   ASSIGN_OR_RETURN(auto tensors, ParseSafetensors(mapped.bytes(), path));
//
//   0 header length N u64 | 8 header: N bytes of JSON | 8 + N tensor data, data_offsets count from here
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/backend/weight_source.h"

namespace swiftcache::engine::loader {

/// `format` is empty for element types that weights never have (integers, booleans, 8-bit floats): `dtype` names them.
struct SafetensorsTensor {
  std::optional<backend::WeightFormat> format;
  std::string dtype;
  std::vector<int64_t> shape;
  std::span<const std::byte> data;
};

/// The tensors by name. The views borrow `bytes`. Bytes that belong to no tensor are ignored.
/// Errors: INVALID_ARGUMENT names file, tensor or offset, found and wanted.
absl::StatusOr<std::map<std::string, SafetensorsTensor>> ParseSafetensors(std::span<const std::byte> bytes,
                                                                          const std::string& file);

}  // namespace swiftcache::engine::loader
