// SPDX-License-Identifier: Apache-2.0
#include "common/log/json_line.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"

namespace swiftcache {
namespace {

using nlohmann::ordered_json;

// <RS> name <US> value as JSON <RS>
constexpr char kFieldMark = '\x1e';
constexpr char kValueMark = '\x1f';

constexpr char kRfc3339Utc[] = "%Y-%m-%dT%H:%M:%E6SZ";

std::string Dump(const ordered_json& json) {
  return json.dump(-1, ' ', /*ensure_ascii=*/false, ordered_json::error_handler_t::replace);
}

// Moves the fields at the beginning of `message` into `object`.
void TakeFields(std::string_view& message, ordered_json& object) {
  while (!message.empty() && message.front() == kFieldMark) {
    const size_t end = message.find(kFieldMark, 1);
    const size_t value = message.find(kValueMark);
    if (end == std::string_view::npos || value > end) return;  // glog cuts messages at 30,000 bytes
    const std::string_view json = message.substr(value + 1, end - value - 1);
    object[std::string(message.substr(1, value - 1))] = ordered_json::parse(json, nullptr, /*allow_exceptions=*/false);
    message.remove_prefix(end + 1);
  }
}

}  // namespace

std::string FormatJsonLine(const JsonLine& line) {
  ordered_json object = {{"time", absl::FormatTime(kRfc3339Utc, line.time, absl::UTCTimeZone())},
                         {"severity", std::string(line.severity)},
                         {"file", std::string(line.file)},
                         {"line", line.line},
                         {"thread", line.thread},
                         {"program", std::string(line.program)}};
  if (!line.engine.empty()) object["engine"] = std::string(line.engine);
  if (!line.model.empty()) object["model"] = std::string(line.model);
  std::string_view message = line.message;
  TakeFields(message, object);
  object["message"] = std::string(message);
  return Dump(object) + "\n";
}

std::string MarkField(std::string_view name, const LogValue& value) {
  const ordered_json json = std::visit([](const auto& v) { return ordered_json(v); }, value);
  std::string out(1, kFieldMark);
  out += name;
  out += kValueMark;
  out += Dump(json);
  return out += kFieldMark;
}

}  // namespace swiftcache
