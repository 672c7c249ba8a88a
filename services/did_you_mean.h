// SPDX-License-Identifier: Apache-2.0
// What somebody meant who mistyped a name, for messages.
//   DidYouMean("--modl", {"--model", "--name"}) == " (did you mean --model?)"
#pragma once

#include <string>
#include <vector>

namespace swiftcache::services {

/// The known name that is nearest to `found`: one letter in three may be wrong, two at most, where swapping two
/// neighbours is one and dashes in front are none. "" if there is none.
std::string Nearest(const std::string& found, const std::vector<std::string>& known);
/// " (did you mean NAME?)", of the nearest or else of the first that begins with `found`; or "".
std::string DidYouMean(const std::string& found, const std::vector<std::string>& known);

}  // namespace swiftcache::services
