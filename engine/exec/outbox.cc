// SPDX-License-Identifier: Apache-2.0
#include "engine/exec/outbox.h"

namespace swiftcache::engine::exec {

void Outbox::Send() {
  for (auto& [sink, event] : events_) sink->OnTokens(std::move(event));
  events_.clear();
  for (Closed& closed : closed_) closed.request->sink->OnDone(std::move(closed.status));
  closed_.clear();
}

}  // namespace swiftcache::engine::exec
