// SPDX-License-Identifier: Apache-2.0
// A step loop that writes down what a coordinator wants of it and does nothing by itself.
//
//   RecordingLoopPort loop;
//   ASSERT_TRUE(loop.log().WaitFor("Clear 7"));
//   coordinator.Cleared(kv::LeaseId(7), true);
#pragma once

#include "absl/strings/str_cat.h"
#include "engine/coordinator/loop_port.h"
#include "tests/fakes/call_log.h"

namespace swiftcache::engine::coordinator {

/// Thread-safety: safe.
class RecordingLoopPort final : public LoopPort {
 public:
  const CallLog& log() const { return log_; }

  void Clear(kv::LeaseId id, const lease::Extent&) override { log_.Add(absl::StrCat("Clear ", id.value())); }
  void StopClearing(kv::LeaseId id) override { log_.Add(absl::StrCat("StopClearing ", id.value())); }
  void TakeBack(kv::LeaseId id, const lease::Extent&) override { log_.Add(absl::StrCat("TakeBack ", id.value())); }
  void Use(kv::LeaseId id, int64_t num_blocks, const std::string&, const transport::LeaseView&) override {
    log_.Add(absl::StrCat("Use ", id.value(), " of ", num_blocks));
  }
  void Drain(kv::LeaseId id, absl::Time) override { log_.Add(absl::StrCat("Drain ", id.value())); }
  void Lose(kv::LeaseId id) override { log_.Add(absl::StrCat("Lose ", id.value())); }
  void Stored(transport::Ticket ticket, const absl::Status& status) override {
    log_.Add(absl::StrCat("Stored ", ticket.value(), " ", absl::StatusCodeToString(status.code())));
  }
  void Lendable(int64_t bytes, const std::string& shortage) override {
    log_.Add(absl::StrCat("Lendable ", bytes, shortage.empty() ? "" : ": ", shortage));
  }

 private:
  CallLog log_;
};

}  // namespace swiftcache::engine::coordinator
