// SPDX-License-Identifier: Apache-2.0
// Python's str methods over texts with marks; filters, methods and operators are made from them.
//
//   ASSIGN_OR_RETURN(Value trimmed, Strip(budget, text, nullptr, Side::kBoth));
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "gateway/text/jinja/value.h"

namespace swiftcache::gateway::text::jinja {

enum class Side { kLeft, kRight, kBoth };

/// Errors of all below: RESOURCE_EXHAUSTED. Marks follow the characters.
absl::StatusOr<Value> ConcatTexts(Budget& budget, const Text& left, const Text& right);
absl::StatusOr<Value> RepeatText(Budget& budget, const Text& text, int64_t times);
/// Removes the characters of `characters` (white space where null) from the ends.
absl::StatusOr<Value> Strip(Budget& budget, const Text& text, const Text* characters, Side side);
/// str.split and rsplit; white space where `separator` is null. REQUIRES: *separator is not empty.
absl::StatusOr<Value> Split(Budget& budget, const Text& text, const Text* separator, int64_t max_splits,
                            bool from_right);
absl::StatusOr<Value> SplitLines(Budget& budget, const Text& text, bool keep_ends);
/// The first `count` occurrences (all where negative).
absl::StatusOr<Value> Replace(Budget& budget, const Text& text, const Text& old_text, const Text& new_text,
                              int64_t count);
absl::StatusOr<Value> EscapeHtml(Budget& budget, const Text& text);

/// Appends what becomes of one character to `*out`.
using PointMapping = std::function<void(char32_t point, std::string* out)>;
absl::StatusOr<Value> MapPoints(Budget& budget, const Text& text, const PointMapping& mapping);
absl::StatusOr<Value> UpperText(Budget& budget, const Text& text);
absl::StatusOr<Value> LowerText(Budget& budget, const Text& text);
absl::StatusOr<Value> CapitalizeText(Budget& budget, const Text& text);
/// str.title, or the `title` filter, whose words end only at white space, - ( { [ <.
absl::StatusOr<Value> TitleText(Budget& budget, const Text& text, bool filter_rules);

/// The characters as a list.
absl::StatusOr<Value> Characters(Budget& budget, const Text& text);

}  // namespace swiftcache::gateway::text::jinja
