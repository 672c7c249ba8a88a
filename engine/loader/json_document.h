// SPDX-License-Identifier: Apache-2.0
// JSON from untrusted files: bounded depth, no duplicate keys, valid UTF-8, finite numbers.
//
//   ASSIGN_OR_RETURN(const nlohmann::json root, ParseJson(text, "config.json"));
//   ASSIGN_OR_RETURN(const JsonObject config, JsonObject::Of(root, "config.json", ""));
//   ASSIGN_OR_RETURN(int64_t layers, config.RequireInt("num_hidden_layers", 1, 10000));
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace swiftcache::engine::loader {

/// Errors: INVALID_ARGUMENT names file, byte, found and wanted.
absl::StatusOr<nlohmann::json> ParseJson(std::string_view text, const std::string& file);

/// What a value is, for messages: `"text"`, `1.5`, `an array of 3`.
std::string Describe(const nlohmann::json& value);

/// Typed look-ups in one object. A key that is absent or null gives std::nullopt (or false for Flag).
/// Thread-safety: immutable. Ownership: borrows the document.
/// Errors: INVALID_ARGUMENT names file, key, found and wanted.
class JsonObject {
 public:
  /// `path` is where the object stands in its document ("rope_scaling"), "" for the root.
  static absl::StatusOr<JsonObject> Of(const nlohmann::json& value, const std::string& file, const std::string& path);

  /// Null where absent or null.
  const nlohmann::json* Find(const std::string& key) const;
  absl::StatusOr<const nlohmann::json*> RequireArray(const std::string& key) const;
  absl::StatusOr<std::optional<int64_t>> Int(const std::string& key, int64_t min, int64_t max) const;
  absl::StatusOr<int64_t> RequireInt(const std::string& key, int64_t min, int64_t max) const;
  absl::StatusOr<std::optional<double>> Double(const std::string& key) const;
  absl::StatusOr<std::optional<bool>> Bool(const std::string& key) const;
  absl::StatusOr<bool> Flag(const std::string& key) const;
  absl::StatusOr<std::optional<std::string>> String(const std::string& key) const;
  absl::StatusOr<std::string> RequireString(const std::string& key) const;
  absl::StatusOr<std::optional<JsonObject>> Object(const std::string& key) const;
  absl::StatusOr<JsonObject> RequireObject(const std::string& key) const;

  const nlohmann::json& value() const { return *value_; }
  const std::string& file() const { return file_; }
  /// The key's full path, for messages.
  std::string Path(const std::string& key) const;
  absl::Status Wrong(const std::string& key, const std::string& wanted) const;

 private:
  JsonObject(const nlohmann::json* value, std::string file, std::string path)
      : value_(value), file_(std::move(file)), path_(std::move(path)) {}

  const nlohmann::json* value_;
  std::string file_, path_;
};

/// The value as an integer from min to max, or nothing.
std::optional<int64_t> ToInt(const nlohmann::json& value, int64_t min, int64_t max);

}  // namespace swiftcache::engine::loader
