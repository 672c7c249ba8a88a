// SPDX-License-Identifier: Apache-2.0
// A broker that writes down what a coordinator wants of it and answers nothing by itself.
//
//   RecordingLeaseBroker broker;
//   ASSERT_TRUE(broker.log().WaitFor("ACCEPTED 7"));
//   coordinator.OnLeaseResponse(LeaseResponse{...});
#pragma once

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "engine/coordinator/lease_broker.h"
#include "tests/fakes/call_log.h"

namespace swiftcache::engine::coordinator {

/// Thread-safety: safe.
class RecordingLeaseBroker final : public LeaseBroker {
 public:
  const CallLog& log() const { return log_; }
  std::vector<LeaseEvent> news() const {
    absl::MutexLock lock(&mutex_);
    return news_;
  }

  void RequestLease(const std::string& key, int64_t want_bytes, int64_t waiting_tokens) override {
    log_.Add(absl::StrCat("Request ", key, " of ", want_bytes, " for ", waiting_tokens));
  }
  void RequestScaleUp(int64_t need_blocks) override { log_.Add(absl::StrCat("ScaleUp ", need_blocks)); }
  void Report(const LeaseEvent& news) override {
    static constexpr const char* kNames[] = {"ACCEPTED", "DECLINED", "ACTIVE", "REVOKING",
                                             "RELEASED", "FENCED",   "LOST"};
    {
      absl::MutexLock lock(&mutex_);
      news_.push_back(news);
    }
    log_.Add(absl::StrCat(kNames[static_cast<int>(news.what)], " ", news.id.value()));
  }
  void ReportWindow(const Window& window) override { log_.Add(absl::StrCat("Window ", window.used_blocks)); }

 private:
  CallLog log_;
  mutable absl::Mutex mutex_;
  std::vector<LeaseEvent> news_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace swiftcache::engine::coordinator
