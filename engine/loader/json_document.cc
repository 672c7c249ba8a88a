// SPDX-License-Identifier: Apache-2.0
#include "engine/loader/json_document.h"

#include <cmath>
#include <utility>
#include <vector>

#include "common/base/status_macros.h"
#include "engine/loader/errors.h"

namespace swiftcache::engine::loader {
namespace {

using nlohmann::json;

constexpr size_t kMaxDepth = 64;

/// Builds the document from events. nlohmann's parser calls it without recursion; it stops at the first false.
class Builder final : public nlohmann::json_sax<json> {
 public:
  bool null() override { return Put(nullptr); }
  bool boolean(bool value) override { return Put(value); }
  bool number_integer(number_integer_t value) override { return Put(value); }
  bool number_unsigned(number_unsigned_t value) override { return Put(value); }
  bool number_float(number_float_t value, const string_t& text) override {
    if (!std::isfinite(value)) return Fail("the number " + Quoted(text) + " is not finite");
    return Put(value);
  }
  bool string(string_t& value) override { return Put(std::move(value)); }
  bool binary(binary_t&) override { return Fail("binary value"); }
  bool start_object(size_t) override { return Open(json::object()); }
  bool start_array(size_t) override { return Open(json::array()); }
  bool end_object() override { return Close(); }
  bool end_array() override { return Close(); }
  bool key(string_t& name) override {
    if (open_.back()->contains(name)) return Fail("key " + Quoted(name) + " is there twice, want it once");
    slot_ = &(*open_.back())[name];
    return true;
  }
  bool parse_error(size_t position, const std::string&, const json::exception& error) override {
    std::string_view reason = error.what();
    if (const size_t tag = reason.find("] "); tag != reason.npos) reason.remove_prefix(tag + 2);  // its error number
    return Fail(absl::StrCat("byte ", position, ": ", Escaped(reason, 300)));
  }

  json TakeRoot() { return std::move(root_); }
  const std::string& error() const { return error_; }

 private:
  bool Fail(std::string error) {
    error_ = std::move(error);
    return false;
  }
  // Where the next value goes. Containers above it do not grow while it is open, so the pointers stay good.
  template <typename Value>
  json* Place(Value&& value) {
    if (open_.empty()) {
      root_ = std::forward<Value>(value);
      return &root_;
    }
    if (open_.back()->is_array()) {
      open_.back()->push_back(std::forward<Value>(value));
      return &open_.back()->back();
    }
    *slot_ = std::forward<Value>(value);
    return slot_;
  }
  template <typename Value>
  bool Put(Value&& value) {
    Place(json(std::forward<Value>(value)));
    return true;
  }
  bool Open(json container) {
    if (open_.size() >= kMaxDepth) return Fail(absl::StrCat("nested deeper than ", kMaxDepth, " levels"));
    open_.push_back(Place(std::move(container)));
    return true;
  }
  bool Close() {
    open_.pop_back();
    return true;
  }

  json root_;
  std::vector<json*> open_;
  json* slot_ = nullptr;
  std::string error_;
};

}  // namespace

absl::StatusOr<json> ParseJson(std::string_view text, const std::string& file) {
  Builder builder;
  if (!json::sax_parse(text.begin(), text.end(), &builder)) {
    return Malformed(file, "malformed JSON: ", builder.error());
  }
  return builder.TakeRoot();
}

std::string Describe(const json& value) {
  if (value.is_string()) return Quoted(value.get_ref<const std::string&>());
  if (value.is_array()) return absl::StrCat("an array of ", value.size());
  if (value.is_object()) return absl::StrCat("an object of ", value.size());
  return value.dump();
}

std::optional<int64_t> ToInt(const json& value, int64_t min, int64_t max) {
  if (!value.is_number_integer()) return std::nullopt;
  if (value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) return std::nullopt;
  const auto number = value.get<int64_t>();
  if (number < min || number > max) return std::nullopt;
  return number;
}

absl::StatusOr<JsonObject> JsonObject::Of(const json& value, const std::string& file, const std::string& path) {
  if (value.is_object()) return JsonObject(&value, file, path);
  return Malformed(file, path.empty() ? "the document" : "key " + path, " is ", Describe(value), ", want an object");
}

const json* JsonObject::Find(const std::string& key) const {
  const auto it = value_->find(key);
  return it == value_->end() || it->is_null() ? nullptr : &*it;
}

std::string JsonObject::Path(const std::string& key) const { return path_.empty() ? key : path_ + "." + key; }

absl::Status JsonObject::Wrong(const std::string& key, const std::string& wanted) const {
  const json* value = Find(key);
  if (value == nullptr) return Malformed(file_, "key ", Path(key), " is missing, want ", wanted);
  return Malformed(file_, "key ", Path(key), ": found ", Describe(*value), ", want ", wanted);
}

absl::StatusOr<const json*> JsonObject::RequireArray(const std::string& key) const {
  const json* value = Find(key);
  if (value == nullptr || !value->is_array()) return Wrong(key, "an array");
  return value;
}

absl::StatusOr<std::optional<int64_t>> JsonObject::Int(const std::string& key, int64_t min, int64_t max) const {
  const json* value = Find(key);
  if (value == nullptr) return std::optional<int64_t>();
  const std::optional<int64_t> number = ToInt(*value, min, max);
  if (!number) return Wrong(key, absl::StrCat("a whole number from ", min, " to ", max));
  return number;
}

absl::StatusOr<int64_t> JsonObject::RequireInt(const std::string& key, int64_t min, int64_t max) const {
  ASSIGN_OR_RETURN(const std::optional<int64_t> number, Int(key, min, max));
  if (!number) return Wrong(key, absl::StrCat("a whole number from ", min, " to ", max));
  return *number;
}

absl::StatusOr<std::optional<double>> JsonObject::Double(const std::string& key) const {
  const json* value = Find(key);
  if (value == nullptr) return std::optional<double>();
  if (!value->is_number()) return Wrong(key, "a number");
  return std::optional<double>(value->get<double>());
}

absl::StatusOr<std::optional<bool>> JsonObject::Bool(const std::string& key) const {
  const json* value = Find(key);
  if (value == nullptr) return std::optional<bool>();
  if (!value->is_boolean()) return Wrong(key, "true or false");
  return std::optional<bool>(value->get<bool>());
}

absl::StatusOr<bool> JsonObject::Flag(const std::string& key) const {
  ASSIGN_OR_RETURN(const std::optional<bool> flag, Bool(key));
  return flag.value_or(false);
}

absl::StatusOr<std::optional<std::string>> JsonObject::String(const std::string& key) const {
  const json* value = Find(key);
  if (value == nullptr) return std::optional<std::string>();
  if (!value->is_string()) return Wrong(key, "a string");
  return std::optional<std::string>(value->get<std::string>());
}

absl::StatusOr<std::string> JsonObject::RequireString(const std::string& key) const {
  ASSIGN_OR_RETURN(std::optional<std::string> text, String(key));
  if (!text) return Wrong(key, "a string");
  return *std::move(text);
}

absl::StatusOr<std::optional<JsonObject>> JsonObject::Object(const std::string& key) const {
  const json* value = Find(key);
  if (value == nullptr) return std::optional<JsonObject>();
  ASSIGN_OR_RETURN(JsonObject object, Of(*value, file_, Path(key)));
  return std::optional<JsonObject>(std::move(object));
}

absl::StatusOr<JsonObject> JsonObject::RequireObject(const std::string& key) const {
  const json* value = Find(key);
  if (value == nullptr) return Wrong(key, "an object");
  return Of(*value, file_, Path(key));
}

}  // namespace swiftcache::engine::loader
