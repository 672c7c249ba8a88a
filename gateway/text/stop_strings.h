// SPDX-License-Identifier: Apache-2.0
// The strings at which the answers of a request end.
//
//   const StopStrings stop = {"\n\n", "END"};
//   StopMatcher matcher = stop.Matcher();  // one for each answer
#pragma once

#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "gateway/text/stop_matcher.h"

namespace swiftcache::gateway::text {

/// A list that does not change. Copies, as those of each prompt of a request, share it and what finds its strings in a
/// text, which the first call of Matcher builds.
/// Thread-safety: safe. Errors: none. Units: bytes.
class StopStrings {
 public:
  StopStrings() = default;  // no strings
  explicit StopStrings(std::vector<std::string> list);
  StopStrings(std::initializer_list<std::string> list) : StopStrings(std::vector<std::string>(list)) {}

  std::span<const std::string> list() const;
  /// At its beginning. The first call takes some 30 bytes for each byte of the strings: check their number and size
  /// before.
  StopMatcher Matcher() const;

 private:
  struct Shared;
  std::shared_ptr<Shared> shared_;  // of all copies; null: no strings
};

}  // namespace swiftcache::gateway::text
