// SPDX-License-Identifier: Apache-2.0
#include "gateway/openai/fields.h"

#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "gateway/openai/api_error.h"

namespace swiftcache::gateway::openai {
namespace {

using nlohmann::json;

constexpr size_t kShownBytes = 60;

std::string Describe(const NumberRange& range) {
  return absl::StrFormat("wants a number in %s%.10g, %.10g]", range.low_is_open ? "(" : "[", range.low, range.high);
}

}  // namespace

std::string Shown(const json& value) {
  if (value.is_array()) return absl::StrCat("a list of ", value.size());
  if (value.is_object()) return "an object";
  if (value.is_string() && value.get_ref<const std::string&>().size() > kShownBytes) {
    return absl::StrCat("a string of ", value.get_ref<const std::string&>().size(), " bytes");
  }
  return value.dump(-1, ' ', false, json::error_handler_t::replace);
}

std::string ShownWithoutText(const json& value) { return value.is_string() ? "a string" : Shown(value); }

std::optional<int64_t> WholeNumber(const json& value, int64_t low, int64_t high) {
  int64_t number = 0;
  if (value.is_number_unsigned()) {
    const auto found = value.get<uint64_t>();
    if (found > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return std::nullopt;
    number = static_cast<int64_t>(found);
  } else if (value.is_number_integer()) {
    number = value.get<int64_t>();
  } else if (value.is_number_float()) {
    const auto found = value.get<double>();
    if (std::abs(found) > 9e15 || found != std::floor(found)) return std::nullopt;  // a double is exact up to 2^53
    number = static_cast<int64_t>(found);
  } else {
    return std::nullopt;
  }
  return number >= low && number <= high ? std::optional<int64_t>(number) : std::nullopt;
}

Fields::Fields(const json& object, std::string prefix) : object_(object), prefix_(std::move(prefix)) {
  if (object_.is_object()) return;
  const std::string name = prefix_.empty() ? "the body" : prefix_.substr(0, prefix_.size() - 1);
  status_ = FieldError(name, absl::StrCat(name, " is ", ShownWithoutText(object_), ", wants a JSON object"));
}

void Fields::Fail(const std::string& name, const std::string& problem) {
  if (status_.ok()) status_ = FieldError(prefix_ + name, prefix_ + name + " " + problem);
}

const json* Fields::Find(const std::string& name) const {
  if (!object_.is_object()) return nullptr;
  const auto at = object_.find(name);
  return at == object_.end() || at->is_null() ? nullptr : &*at;
}

std::optional<double> Fields::Double(const std::string& name, const NumberRange& range) {
  const json* value = Find(name);
  if (value == nullptr) return std::nullopt;
  if (value->is_number()) {
    const auto number = value->get<double>();
    const bool above = range.low_is_open ? number > range.low : number >= range.low;
    if (above && number <= range.high) return number;
  }
  Fail(name, absl::StrCat("is ", Shown(*value), ", ", Describe(range)));
  return std::nullopt;
}

std::optional<int64_t> Fields::Integer(const std::string& name, int64_t low, int64_t high) {
  const json* value = Find(name);
  if (value == nullptr) return std::nullopt;
  const std::optional<int64_t> number = WholeNumber(*value, low, high);
  if (!number) Fail(name, absl::StrCat("is ", Shown(*value), ", wants a whole number in [", low, ", ", high, "]"));
  return number;
}

std::optional<uint64_t> Fields::Seed(const std::string& name) {
  const json* value = Find(name);
  if (value == nullptr) return std::nullopt;
  if (value->is_number_unsigned()) return value->get<uint64_t>();
  constexpr int64_t kLow = std::numeric_limits<int64_t>::min(), kHigh = std::numeric_limits<int64_t>::max();
  const std::optional<int64_t> number = WholeNumber(*value, kLow, kHigh);
  if (!number) {
    Fail(name, absl::StrCat("is ", Shown(*value), ", wants a whole number of 64 bits"));
    return std::nullopt;
  }
  if (*number == -1) return std::nullopt;  // vLLM's and llama.cpp's word for none
  return static_cast<uint64_t>(*number);
}

std::optional<bool> Fields::Bool(const std::string& name) {
  const json* value = Find(name);
  if (value == nullptr) return std::nullopt;
  if (value->is_boolean()) return value->get<bool>();
  Fail(name, absl::StrCat("is ", Shown(*value), ", wants true or false"));
  return std::nullopt;
}

std::optional<std::string> Fields::Text(const std::string& name, int64_t max_bytes) {
  const json* value = Find(name);
  if (value == nullptr) return std::nullopt;
  std::vector<std::string> out;
  AddText(name, *value, max_bytes, out);
  return out.empty() ? std::nullopt : std::optional<std::string>(std::move(out[0]));
}

void Fields::AddText(const std::string& name, const json& value, int64_t max_bytes, std::vector<std::string>& out) {
  if (!value.is_string()) return Fail(name, absl::StrCat("is ", Shown(value), ", wants a string"));
  const auto& text = value.get_ref<const std::string&>();
  if (static_cast<int64_t>(text.size()) > max_bytes) {
    return Fail(name, absl::StrCat("has ", text.size(), " bytes, wants at most ", max_bytes));
  }
  out.push_back(text);
}

std::vector<std::string> Fields::Texts(const std::string& name, int64_t max_count, int64_t max_bytes) {
  std::vector<std::string> out;
  const json* value = Find(name);
  if (value == nullptr) return out;
  if (!value->is_array()) {
    AddText(name, *value, max_bytes, out);
  } else if (static_cast<int64_t>(value->size()) > max_count) {
    Fail(name, absl::StrCat("has ", value->size(), " strings, wants at most ", max_count));
  } else {
    for (size_t i = 0; i < value->size(); ++i) AddText(absl::StrCat(name, "[", i, "]"), (*value)[i], max_bytes, out);
  }
  for (const std::string& text : out) {
    if (text.empty()) Fail(name, "holds an empty string, wants text: leave it out");
  }
  return out;
}

std::vector<int32_t> Fields::Ids(const std::string& name, int64_t max_count) {
  std::vector<int32_t> ids;
  const json* value = Find(name);
  if (value == nullptr) return ids;
  if (!value->is_array() || static_cast<int64_t>(value->size()) > max_count) {
    Fail(name, absl::StrCat("is ", Shown(*value), ", wants a list of at most ", max_count, " token ids"));
    return ids;
  }
  for (size_t i = 0; i < value->size(); ++i) {
    const std::optional<int64_t> id = WholeNumber((*value)[i], 0, std::numeric_limits<int32_t>::max());
    if (!id) {
      Fail(absl::StrCat(name, "[", i, "]"), absl::StrCat("is ", Shown((*value)[i]), ", wants a token id"));
      return ids;
    }
    ids.push_back(static_cast<int32_t>(*id));
  }
  return ids;
}

}  // namespace swiftcache::gateway::openai
