// SPDX-License-Identifier: Apache-2.0
// Typed reads from a JSON object. The first error is kept, so that a parser reads all fields and checks once at the
// end.
//
//   Fields fields(body);
//   sampling.top_p = fields.Number<float>("top_p", {.low = 0, .high = 1, .low_is_open = true});
//   RETURN_IF_ERROR(fields.status());
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace swiftcache::gateway::openai {

struct NumberRange {
  double low = 0, high = 0;
  bool low_is_open = false;
};

/// null counts as absent everywhere, as OpenAI's clients send it.
/// Thread-safety: none. Ownership: borrows the object. Errors: status(): INVALID_ARGUMENT naming field, value and
/// limit.
class Fields {
 public:
  /// `prefix` goes before names in messages, e.g. "stream_options.". If `object` is no JSON object, that is the error.
  explicit Fields(const nlohmann::json& object, std::string prefix = "");

  /// nullptr where the field is absent.
  const nlohmann::json* Find(const std::string& name) const;

  template <typename T>
  std::optional<T> Number(const std::string& name, const NumberRange& range) {
    const std::optional<double> value = Double(name, range);
    return value ? std::optional<T>(static_cast<T>(*value)) : std::nullopt;
  }
  /// A whole number; 5.0 is one.
  std::optional<int64_t> Integer(const std::string& name, int64_t low, int64_t high);
  std::optional<uint64_t> Seed(const std::string& name);
  std::optional<bool> Bool(const std::string& name);
  std::optional<std::string> Text(const std::string& name, int64_t max_bytes);
  /// One string or a list of strings; none may be empty.
  std::vector<std::string> Texts(const std::string& name, int64_t max_count, int64_t max_bytes);
  std::vector<int32_t> Ids(const std::string& name, int64_t max_count);

  void Fail(const std::string& name, const std::string& problem);
  /// Remembers the error of an object inside this one.
  void Adopt(const absl::Status& status) { status_.Update(status); }
  const absl::Status& status() const { return status_; }

 private:
  std::optional<double> Double(const std::string& name, const NumberRange& range);
  void AddText(const std::string& name, const nlohmann::json& value, int64_t max_bytes, std::vector<std::string>& out);

  const nlohmann::json& object_;
  const std::string prefix_;
  absl::Status status_;
};

/// The value as an error message shows it, cut to a few dozen characters.
std::string Shown(const nlohmann::json& value);
/// The same without any text: what stands in a prompt's or a message's place may be one, and errors are logged.
std::string ShownWithoutText(const nlohmann::json& value);

/// `value` as a whole number in low..high.
std::optional<int64_t> WholeNumber(const nlohmann::json& value, int64_t low, int64_t high);

}  // namespace swiftcache::gateway::openai
