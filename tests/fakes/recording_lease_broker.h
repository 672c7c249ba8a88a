// SPDX-License-Identifier: Apache-2.0
// A broker that writes down what a coordinator wants of it and answers nothing by itself.
//
//   RecordingLeaseBroker broker;
//   ASSERT_TRUE(broker.log().WaitFor("GRANTED 7"));
//   coordinator.OnLeaseResponse(LeaseResponse{...});
#pragma once

#include <atomic>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "engine/coordinator/lease_broker.h"
#include "tests/fakes/call_log.h"

namespace swiftcache::engine::coordinator {

/// Thread-safety: safe.
class RecordingLeaseBroker final : public LeaseBroker {
 public:
  /// Called in RequestScaleUp. Set before the first call.
  std::function<void()> on_scale_up;
  const CallLog& log() const { return log_; }
  std::vector<LeaseEvent> news() const {
    absl::MutexLock lock(&mutex_);
    return news_;
  }

  /// Of RequestScaleUp.
  int64_t last_question() const { return last_question_; }

  void RequestLease(const LeaseRequest& request) override {
    log_.Add(absl::StrCat("Request ", request.key, " of ", request.want_bytes, " for ", request.waiting_tokens));
  }
  void RequestScaleUp(int64_t question, int64_t need_blocks) override {
    if (on_scale_up) on_scale_up();
    last_question_ = question;
    log_.Add(absl::StrCat("ScaleUp ", need_blocks));
  }
  void Report(const LeaseEvent& news) override {
    {
      absl::MutexLock lock(&mutex_);
      news_.push_back(news);
    }
    log_.Add(absl::StrCat(absl::AsciiStrToUpper(lease::StateName(news.lease.state)), " ", news.lease.id.value()));
  }
  /// Of used blocks below 0: a mark, which WaitForMark waits for.
  void ReportWindow(const Window& window) override {
    if (window.used_blocks >= 0) return log_.Add(absl::StrCat("Window ", window.used_blocks));
    absl::MutexLock lock(&mutex_);
    last_mark_ = -window.used_blocks;
  }
  /// False: it did not come in good time.
  bool WaitForMark(int64_t mark) const {
    const auto came = [&] {
      mutex_.AssertHeld();
      return last_mark_ >= mark;
    };
    absl::MutexLock lock(&mutex_);
    return mutex_.AwaitWithTimeout(absl::Condition(&came), CallLog::kPatience);
  }

 private:
  CallLog log_;
  std::atomic<int64_t> last_question_ = 0;
  mutable absl::Mutex mutex_;
  std::vector<LeaseEvent> news_ ABSL_GUARDED_BY(mutex_);
  int64_t last_mark_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace swiftcache::engine::coordinator
