// SPDX-License-Identifier: Apache-2.0
#include "gateway/text/stop_strings.h"

#include <mutex>
#include <optional>
#include <utility>

namespace swiftcache::gateway::text {

struct StopStrings::Shared {
  const std::vector<std::string> list;
  std::once_flag once;
  std::optional<StopMatcher> matcher;
};

StopStrings::StopStrings(std::vector<std::string> list) {
  if (!list.empty()) shared_ = std::shared_ptr<Shared>(new Shared{.list = std::move(list), .once = {}, .matcher = {}});
}

std::span<const std::string> StopStrings::list() const {
  return shared_ == nullptr ? std::span<const std::string>() : shared_->list;
}

StopMatcher StopStrings::Matcher() const {
  if (shared_ == nullptr) return StopMatcher({});
  std::call_once(shared_->once, [this] { shared_->matcher.emplace(shared_->list); });
  return *shared_->matcher;
}

}  // namespace swiftcache::gateway::text
