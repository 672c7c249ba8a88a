// SPDX-License-Identifier: Apache-2.0
// The structure of a GGUF file (version 2 or 3, little-endian): metadata and tensor infos, checked.
//
//   ASSIGN_OR_RETURN(GgufFile gguf, GgufFile::Parse(mapped.bytes(), path));
//   const GgufTensor& embedding = gguf.tensors().at("token_embd.weight");
//
//   0 "GGUF" | 4 version u32 | 8 tensor count u64 | 16 metadata count u64 | 24 metadata pairs | tensor infos |
//   padding to general.alignment (default 32) | tensor data
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/backend/weight_source.h"
#include "engine/loader/gguf_metadata.h"

namespace swiftcache::engine::loader {

/// A tensor's place. dims: the fastest one first ([cols, rows] of a matrix). Its bytes are inside the file.
struct GgufTensor {
  backend::WeightFormat format = backend::WeightFormat::kF32;
  std::vector<int64_t> dims;
  std::span<const std::byte> data;
};

/// Thread-safety: immutable. Ownership: borrows the bytes given to Parse.
/// Errors: INVALID_ARGUMENT names file, offset or key, found and wanted; UNIMPLEMENTED names the tensor type or
/// version.
class GgufFile {
 public:
  static absl::StatusOr<GgufFile> Parse(std::span<const std::byte> bytes, const std::string& file);

  const GgufMetadata& metadata() const { return metadata_; }
  const std::map<std::string, GgufTensor, std::less<>>& tensors() const { return tensors_; }
  const std::string& file() const { return metadata_.file(); }

 private:
  explicit GgufFile(GgufMetadata metadata) : metadata_(std::move(metadata)) {}

  GgufMetadata metadata_;
  std::map<std::string, GgufTensor, std::less<>> tensors_;
};

}  // namespace swiftcache::engine::loader
