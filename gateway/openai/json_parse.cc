// SPDX-License-Identifier: Apache-2.0
#include "gateway/openai/json_parse.h"

#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace swiftcache::gateway::openai {
namespace {

using nlohmann::json;

/// Builds the value, and stops the parser at the first violation of a limit. Each method returns whether to go on.
class Builder {
 public:
  explicit Builder(const JsonLimits& limits) : limits_(limits) {}

  bool null() { return Add(json()) != nullptr; }
  bool boolean(bool value) { return Add(value) != nullptr; }
  bool number_integer(int64_t value) { return Add(value) != nullptr; }
  bool number_unsigned(uint64_t value) { return Add(value) != nullptr; }
  bool number_float(double value, const std::string&) { return Add(value) != nullptr; }
  bool string(std::string& value) { return Add(std::move(value)) != nullptr; }
  bool binary(json::binary_t&) { return Fail("binary values are not JSON"); }
  bool start_object(size_t) { return Open(json::object()); }
  bool start_array(size_t) { return Open(json::array()); }
  bool end_object() { return Close(); }
  bool end_array() { return Close(); }
  bool key(std::string& name);
  bool parse_error(size_t position, const std::string&, const json::exception& error);

  absl::Status status() const { return status_; }
  json Take() { return std::move(root_); }

 private:
  bool Fail(const std::string& message) {
    status_ = absl::InvalidArgumentError(message);
    return false;
  }
  bool Close() {
    open_.pop_back();
    return true;
  }
  bool Open(json value);
  json* Add(json value);

  const JsonLimits limits_;
  json root_;
  std::vector<json*>
      open_;              // the containers around the current place; a container does not grow while one in it is open
  json* slot_ = nullptr;  // where the value of the last key goes
  int64_t values_ = 0;
  absl::Status status_;
};

json* Builder::Add(json value) {
  if (++values_ > limits_.max_values) {
    Fail(absl::StrCat("the body holds more than ", limits_.max_values, " JSON values, the limit: send less at once"));
    return nullptr;
  }
  if (open_.empty()) {
    root_ = std::move(value);
    return &root_;
  }
  if (open_.back()->is_array()) {
    open_.back()->push_back(std::move(value));
    return &open_.back()->back();
  }
  *slot_ = std::move(value);
  return slot_;
}

bool Builder::Open(json value) {
  if (static_cast<int64_t>(open_.size()) >= limits_.max_depth) {
    return Fail(absl::StrCat("the body is nested deeper than ", limits_.max_depth, " levels, the limit"));
  }
  json* added = Add(std::move(value));
  if (added != nullptr) open_.push_back(added);
  return added != nullptr;
}

bool Builder::key(std::string& name) {
  const auto [at, is_new] = open_.back()->get_ref<json::object_t&>().try_emplace(name);
  slot_ = &at->second;
  return is_new || Fail(absl::StrCat("key '", name.substr(0, 100), "' stands twice in one object: send it once"));
}

bool Builder::parse_error(size_t position, const std::string&, const json::exception& error) {
  std::string what = error.what();  // "[json.exception.parse_error.101] parse error at ...: reason"
  if (const size_t end = what.find("] "); end != std::string::npos) what.erase(0, end + 2);
  // "; last read: '"the text so far" is of the body, and errors are logged: the byte says where.
  if (const size_t read = what.find("; last read: "); read != std::string::npos) what.erase(read);
  return Fail(absl::StrCat("the body is not valid JSON (byte ", position, "): ", what.substr(0, 300)));
}

}  // namespace

absl::StatusOr<json> ParseJson(const std::string& text, const JsonLimits& limits) {
  Builder builder(limits);
  if (!json::sax_parse(text, &builder)) {
    if (builder.status().ok()) return absl::InvalidArgumentError("the body is not valid JSON");
    return builder.status();
  }
  return builder.Take();
}

}  // namespace swiftcache::gateway::openai
