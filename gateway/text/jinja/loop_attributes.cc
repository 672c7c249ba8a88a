// SPDX-License-Identifier: Apache-2.0
#include "gateway/text/jinja/loop_attributes.h"

#include <string>

namespace swiftcache::gateway::text::jinja {
namespace {

std::optional<int64_t> Number(const Loop& loop, std::string_view name) {
  int64_t size = static_cast<int64_t>(loop.items->items.size());
  if (name == "index") return loop.index + 1;
  if (name == "index0") return loop.index;
  if (name == "revindex") return size - loop.index;
  if (name == "revindex0") return size - loop.index - 1;
  if (name == "length") return size;
  if (name == "depth") return 1;  // only recursive loops, which are not supported, have more
  if (name == "depth0") return 0;
  return std::nullopt;
}

Value Neighbour(const Loop& loop, int64_t index, const char* missing) {
  if (index < 0 || index >= static_cast<int64_t>(loop.items->items.size())) return Value::Missing(missing);
  return loop.items->items[static_cast<size_t>(index)];
}

}  // namespace

absl::StatusOr<std::optional<Value>> LoopAttribute(const std::shared_ptr<const Loop>& loop, std::string_view name) {
  if (auto number = Number(*loop, name)) return std::optional<Value>(Value::Int(*number));
  int64_t last = static_cast<int64_t>(loop->items->items.size()) - 1;
  if (name == "first") return std::optional<Value>(Value::Bool(loop->index == 0));
  if (name == "last") return std::optional<Value>(Value::Bool(loop->index == last));
  if (name == "previtem") return std::optional<Value>(Neighbour(*loop, loop->index - 1, "there is no previous item"));
  if (name == "nextitem") return std::optional<Value>(Neighbour(*loop, loop->index + 1, "there is no next item"));
  if (name == "cycle") return std::optional<Value>(Value(std::make_shared<const Method>(Method{Value(loop), "cycle"})));
  if (name == "changed") return absl::UnimplementedError("loop.changed is not supported");
  return std::optional<Value>();
}

}  // namespace swiftcache::gateway::text::jinja
