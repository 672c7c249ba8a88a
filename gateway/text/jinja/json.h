// SPDX-License-Identifier: Apache-2.0
// Values as JSON: json.dumps(value, ensure_ascii=False, ...), which is what transformers puts behind |tojson.
//
//   RETURN_IF_ERROR(AppendJson(value, {.indent = 2}, out));
#pragma once

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "gateway/text/jinja/text.h"
#include "gateway/text/jinja/value.h"

namespace swiftcache::gateway::text::jinja {

struct JsonFormat {
  bool ensure_ascii = false;
  bool sort_keys = false;
  std::optional<int64_t> indent;
  std::optional<std::string> item_separator, key_separator;
};

/// Errors: the builder's; INVALID_ARGUMENT for a value that JSON has no form for (undefined, functions), or a large
/// indent.
absl::Status AppendJson(const Value& value, const JsonFormat& format, TextBuilder& out);

}  // namespace swiftcache::gateway::text::jinja
