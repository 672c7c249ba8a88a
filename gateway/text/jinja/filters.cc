// SPDX-License-Identifier: Apache-2.0
#include "gateway/text/jinja/filters.h"

#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "gateway/text/jinja/access.h"
#include "gateway/text/jinja/builders.h"

namespace swiftcache::gateway::text::jinja {
namespace {

const Filter* FindFilter(std::string_view name) {
  for (std::span<const Filter> table : {TextFilters(), NumberFilters(), ListFilters(), OrderFilters()}) {
    for (const Filter& filter : table) {
      if (filter.name == name) return &filter;
    }
  }
  return nullptr;
}

}  // namespace

bool IsFilterName(std::string_view name) { return FindFilter(name) != nullptr; }

absl::StatusOr<Value> ApplyFilter(Budget& budget, std::string_view name, const Value& input,
                                  const Arguments& arguments) {
  const Filter* filter = FindFilter(name);
  if (filter == nullptr) {
    return absl::UnimplementedError(absl::StrCat("the filter '", std::string(name), "' is not supported"));
  }
  return filter->apply({budget, filter->name, input, arguments});
}

absl::StatusOr<Value> LookUpPath(Budget& budget, const Value& value, const Value& path) {
  const Text* text = path.AsText();
  if (text == nullptr) return GetItem(budget, value, path);
  Value found = value;
  std::string_view rest = text->bytes;
  while (true) {
    std::string part(rest.substr(0, rest.find('.')));
    int64_t index = 0;
    bool is_index = part.find_first_not_of("0123456789") == std::string::npos && absl::SimpleAtoi(part, &index);
    ASSIGN_OR_RETURN(found, GetItem(budget, found, is_index ? Value::Int(index) : Value::String(FreeText(part))));
    if (part.size() == rest.size()) return found;
    rest.remove_prefix(part.size() + 1);
  }
}

}  // namespace swiftcache::gateway::text::jinja
