// SPDX-License-Identifier: Apache-2.0
// A step loop that writes down what a coordinator wants of it and does nothing by itself.
//
//   RecordingLoop loop;
//   coordinator.Start(&transport, &broker, loop.push());
//   ASSERT_TRUE(loop.log().WaitFor("Clear 7"));
//   coordinator.Cleared(kv::LeaseId(7), true);
#pragma once

#include <functional>
#include <map>
#include <string>
#include <variant>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "engine/coordinator/loop_message.h"
#include "tests/fakes/call_log.h"

namespace swiftcache::engine::coordinator {

/// A message in a word, of which lease, and what tests ask of it beyond that.
class MessageNamer {
 public:
  std::string operator()(const ClearMessage& m) const { return absl::StrCat("Clear ", m.id.value()); }
  std::string operator()(const StopClearingMessage& m) const { return absl::StrCat("StopClearing ", m.id.value()); }
  std::string operator()(const WithheldMessage& m) const { return absl::StrCat("Withheld ", m.id.value()); }
  std::string operator()(const TakeBackMessage& m) const { return absl::StrCat("TakeBack ", m.id.value()); }
  std::string operator()(const UseMessage& m) const { return absl::StrCat("Use ", m.id.value(), " of ", m.num_blocks); }
  std::string operator()(const DrainMessage& m) const { return absl::StrCat("Drain ", m.id.value()); }
  std::string operator()(const LoseMessage& m) const { return absl::StrCat("Lose ", m.id.value()); }
  std::string operator()(const StoredMessage& m) const {
    return absl::StrCat("Stored ", m.ticket.value(), " ", absl::StatusCodeToString(m.status.code()));
  }
  std::string operator()(const LendableMessage& m) const {
    return absl::StrCat("Lendable ", m.bytes, m.shortage.empty() ? "" : ": ", m.shortage);
  }
  std::string operator()(const TermsMessage& m) const {
    return absl::StrCat("Terms ", absl::FormatDuration(m.scale_down_window));
  }
};

/// Thread-safety: safe. Ownership: `push` borrows it.
class RecordingLoop {
 public:
  const CallLog& log() const { return log_; }
  /// Where the lease lies, by the last Use of it. REQUIRES: there was one.
  transport::LeaseView ViewOf(kv::LeaseId lease) const {
    absl::MutexLock lock(&mutex_);
    return views_.at(lease);
  }
  std::function<void(LoopMessage)> push() {
    return [this](const LoopMessage& message) {
      if (const auto* use = std::get_if<UseMessage>(&message)) {
        absl::MutexLock lock(&mutex_);
        views_[use->id] = use->view;
      }
      log_.Add(std::visit(MessageNamer(), message));
    };
  }

 private:
  CallLog log_;
  mutable absl::Mutex mutex_;
  std::map<kv::LeaseId, transport::LeaseView> views_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace swiftcache::engine::coordinator
