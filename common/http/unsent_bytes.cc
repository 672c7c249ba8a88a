// SPDX-License-Identifier: Apache-2.0
#include "common/http/unsent_bytes.h"

#include <algorithm>

namespace swiftcache::http {
namespace {

constexpr int64_t kBurst = 16;  // times max_bytes, for at most burst_time

}  // namespace

// What comes at once, as a prompt that many answers echo, is more than a client leaves unread.
bool UnsentBytes::HasRoom(int64_t bytes) {
  const Clock::time_point now = Clock::now();
  const int64_t unsent = bytes_;
  if (unsent <= max_bytes_) burst_end_ = now + burst_time_;
  if (unsent + bytes <= std::min(kAlwaysBytes, max_bytes_)) return true;
  if (!of_all_->HasRoom(bytes)) return false;
  if (unsent + bytes <= max_bytes_) return true;
  return unsent + bytes <= kBurst * max_bytes_ && now < burst_end_.load();
}

bool UnsentBytes::Behind() const { return bytes_ > max_bytes_ || (bytes_ > kAlwaysBytes && !of_all_->HasRoom(1)); }

}  // namespace swiftcache::http
