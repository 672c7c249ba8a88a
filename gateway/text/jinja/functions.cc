// SPDX-License-Identifier: Apache-2.0
#include "gateway/text/jinja/functions.h"

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/base/status_macros.h"
#include "gateway/text/jinja/builders.h"
#include "gateway/text/jinja/print.h"

namespace swiftcache::gateway::text::jinja {
namespace {

constexpr int64_t kMaxRange = 100'000;
constexpr std::string_view kTimeFormats = "aAbBcdDeFHIjmMpSTuUwWyYzZ%";

absl::StatusOr<int64_t> RangeSize(int64_t start, int64_t stop, int64_t step) {
  if (step == 0) return absl::InvalidArgumentError("range: the step must not be 0");
  // In 128 bits, so that no difference wraps.
  __int128 span = step > 0 ? static_cast<__int128>(stop) - start : static_cast<__int128>(start) - stop;
  __int128 stride = step > 0 ? static_cast<__int128>(step) : -static_cast<__int128>(step);
  __int128 size = span <= 0 ? 0 : (span + stride - 1) / stride;
  if (size <= kMaxRange) return static_cast<int64_t>(size);
  return absl::ResourceExhaustedError(absl::StrCat("range: more than ", kMaxRange, " items: mend the template"));
}

absl::StatusOr<Value> Range(FunctionContext& context, const Arguments& arguments) {
  ASSIGN_OR_RETURN(Bound args, Bind("range", arguments, {"start", "stop", "step"}));
  if (!args[0] || !arguments.named.empty()) return absl::InvalidArgumentError("range wants one to three integers");
  int64_t bounds[3] = {0, 0, 1};
  for (size_t i = 0; i < 3 && args[i]; ++i) {
    ASSIGN_OR_RETURN(bounds[i], IntegerArgument("range", *args[i]));
  }
  int64_t start = args[1] ? bounds[0] : 0, stop = args[1] ? bounds[1] : bounds[0];
  ASSIGN_OR_RETURN(int64_t size, RangeSize(start, stop, bounds[2]));
  ListBuilder out(context.budget, ListKind::kRange);
  for (int64_t i = 0; i < size; ++i) {
    if (!out.Add(Value::Int(start + i * bounds[2]))) break;
  }
  return out.Finish();
}

absl::StatusOr<Value> MakeDict(FunctionContext& context, const Arguments& arguments) {
  DictBuilder out(context.budget);
  if (arguments.positional.size() > 1)
    return absl::InvalidArgumentError("dict wants at most one dict and named values");
  if (!arguments.positional.empty()) {
    const Dict* from = arguments.positional[0].AsDict();
    if (from == nullptr) return absl::UnimplementedError("dict() of anything but a dict is not supported");
    for (const auto& [key, value] : from->items) out.Add(key, value);
  }
  for (const auto& [name, value] : arguments.named) out.Add(name, value);
  return out.Finish();
}

absl::StatusOr<Value> MakeNamespace(FunctionContext& context, const Arguments& arguments) {
  ASSIGN_OR_RETURN(Value dict, MakeDict(context, arguments));
  auto space = std::make_unique<Namespace>();
  for (const auto& [key, value] : dict.AsDict()->items) {
    if (const Text* name = key.AsText()) space->attributes[name->bytes] = value;
  }
  context.namespaces.push_back(std::move(space));
  return Value(context.namespaces.back().get());
}

absl::StatusOr<Value> RaiseException(FunctionContext& context, const Arguments& arguments) {
  ASSIGN_OR_RETURN(Bound args, Bind("raise_exception", arguments, {"message"}));
  ASSIGN_OR_RETURN(TextPtr message, Str(context.budget, args[0].value_or(Value())));
  context.raised = true;
  return absl::InvalidArgumentError(message->bytes);
}

absl::StatusOr<Value> StrftimeNow(FunctionContext& context, const Arguments& arguments) {
  ASSIGN_OR_RETURN(Bound args, Bind("strftime_now", arguments, {"format"}));
  ASSIGN_OR_RETURN(const Text* format, TextArgument("strftime_now", args[0].value_or(Value())));
  for (size_t at = format->bytes.find('%'); at != std::string::npos; at = format->bytes.find('%', at + 2)) {
    if (at + 1 < format->bytes.size() && kTimeFormats.find(format->bytes[at + 1]) != std::string_view::npos) continue;
    return absl::UnimplementedError(absl::StrCat("strftime_now: the format '", format->bytes, "' is not supported"));
  }
  RETURN_IF_ERROR(context.budget.SpendBytes(64 * format->size()));
  return NewString(context.budget, absl::FormatTime(format->bytes, context.wall_time, absl::LocalTimeZone()));
}

constexpr Function kFunctions[] = {{"range", Range},
                                   {"namespace", MakeNamespace},
                                   {"dict", MakeDict},
                                   {"raise_exception", RaiseException},
                                   {"strftime_now", StrftimeNow}};

}  // namespace

const Function* FindFunction(std::string_view name) {
  for (const Function& function : kFunctions) {
    if (function.name == name) return &function;
  }
  return nullptr;
}

}  // namespace swiftcache::gateway::text::jinja
