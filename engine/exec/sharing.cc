// SPDX-License-Identifier: Apache-2.0
#include "engine/exec/sharing.h"

#include <algorithm>
#include <type_traits>
#include <variant>

namespace swiftcache::engine::exec {
namespace {

// Between two looks for leases that are done with while messages are handled. Each is a look at all that leave, and many
// can leave at once; but their messages can take long, and donors wait.
constexpr absl::Duration kBetweenFinishes = absl::Milliseconds(1);

}  // namespace

Sharing::Sharing(const Options& options, const Dependencies& parts)
    : parts_(parts),
      lending_({parts.own, parts.cache, parts.coordinator, parts.clock, parts.metrics}, options.scrub_on_return),
      borrowing_(options.borrowing, {parts.own, parts.cache, parts.scheduler, parts.transport, parts.coordinator,
                                     parts.urgency, parts.clock}),
      window_({.window = coordinator::LeaseTerms().scale_down_window, .num_blocks = options.borrowing.num_blocks}) {}

void Sharing::Handle(const coordinator::LoopMessage& message) {
  borrowing_.FinishFetches();
  std::visit(
      [this](const auto& m) {
        if constexpr (requires { lending_.Do(m); }) {
          lending_.Do(m);
        } else if constexpr (requires { Do(m); }) {
          Do(m);
        } else {
          borrowing_.Do(m);
        }
      },
      message);
  if (parts_.clock->Now() < next_finish_) return;
  borrowing_.FinishRegions();
  next_finish_ = parts_.clock->Now() + kBetweenFinishes;
}

void Sharing::Do(const coordinator::TermsMessage& terms) {
  window_.SetWindow(terms.scale_down_window);
  borrowing_.SetKeepIdle(WindowTracker::kReuseWindows * terms.scale_down_window);
}

void Sharing::Advance(int64_t waiting_tokens, int64_t longest_request_tokens) {
  borrowing_.FinishFetches();
  if (!parts_.scheduler->has_work()) lending_.ForgetNeed();  // cancelled
  lending_.Advance();
  borrowing_.Advance(waiting_tokens);
  const int64_t to_come = parts_.cache->BlocksFor(waiting_tokens) + parts_.scheduler->missing_blocks();
  const auto window = window_.Follow(*parts_.cache, to_come, longest_request_tokens, parts_.clock->Now());
  if (window) parts_.coordinator->ReportWindow(*window);
}

absl::Time Sharing::NextWakeup() const {
  return std::min({lending_.NextWakeup(), borrowing_.NextWakeup(), window_.NextUpdate()});
}

}  // namespace swiftcache::engine::exec
