// SPDX-License-Identifier: Apache-2.0
// The key-value section of a GGUF file, read in place.
//
//   ASSIGN_OR_RETURN(int64_t layers, metadata.RequireInt("llama.block_count", 1, 10000));
//   ASSIGN_OR_RETURN(std::optional<std::string_view> pre, metadata.String("tokenizer.ggml.pre"));
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/loader/byte_reader.h"

namespace swiftcache::engine::loader {

/// The numbers are the format's.
enum class GgufType : uint32_t {
  kUint8 = 0,
  kInt8 = 1,
  kUint16 = 2,
  kInt16 = 3,
  kUint32 = 4,
  kInt32 = 5,
  kFloat32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kUint64 = 10,
  kInt64 = 11,
  kFloat64 = 12,
};

/// One value, still encoded. Array: `element` and `count` are set and `bytes` holds the elements.
struct GgufValue {
  GgufType type = GgufType::kUint8;
  GgufType element = GgufType::kUint8;
  int64_t count = 0;
  std::span<const std::byte> bytes;
  int64_t offset = 0;  // in the file, for messages
};

/// Typed look-ups. A key that is absent gives std::nullopt; one of another type, or out of range, is an error.
/// Thread-safety: immutable. Ownership: borrows the file's bytes, and so do the views it returns.
/// Errors: INVALID_ARGUMENT names file, key, found and wanted.
class GgufMetadata {
 public:
  /// Reads `count` pairs; every length is checked against the bytes left before anything is allocated.
  static absl::StatusOr<GgufMetadata> Parse(ByteReader& reader, uint64_t count);

  absl::StatusOr<std::optional<int64_t>> Int(const std::string& key, int64_t min, int64_t max) const;
  absl::StatusOr<int64_t> RequireInt(const std::string& key, int64_t min, int64_t max) const;
  /// As Int; an array is taken too if all its elements are equal (per-layer values of a uniform model).
  absl::StatusOr<std::optional<int64_t>> UniformInt(const std::string& key, int64_t min, int64_t max) const;
  /// Finite.
  absl::StatusOr<std::optional<double>> Float(const std::string& key) const;
  absl::StatusOr<std::optional<bool>> Bool(const std::string& key) const;
  absl::StatusOr<std::optional<std::string_view>> String(const std::string& key) const;
  absl::StatusOr<std::optional<std::vector<std::string_view>>> Strings(const std::string& key) const;
  absl::StatusOr<std::optional<std::vector<float>>> Floats(const std::string& key) const;
  absl::StatusOr<std::optional<std::vector<int32_t>>> Ints(const std::string& key) const;

  const std::string& file() const { return file_; }

 private:
  explicit GgufMetadata(std::string file) : file_(std::move(file)) {}
  const GgufValue* Find(const std::string& key) const;
  absl::Status WrongType(const std::string& key, const GgufValue& value, const char* wanted) const;
  absl::StatusOr<int64_t> ToInt(const std::string& key, const GgufValue& value, int64_t min, int64_t max) const;

  std::string file_;
  std::map<std::string, GgufValue, std::less<>> values_;
};

}  // namespace swiftcache::engine::loader
