// SPDX-License-Identifier: Apache-2.0
// What this process logs, line by line, while the object lives.
//
//   LogLines log;
//   ...
//   EXPECT_THAT(log.lines(), Contains(HasSubstr("request ended")));
#pragma once

#include <glog/logging.h>

#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace swiftcache::fakes {

/// Thread-safety: safe.
class LogLines final : public google::LogSink {
 public:
  LogLines() { google::AddLogSink(this); }
  ~LogLines() override { google::RemoveLogSink(this); }
  LogLines(const LogLines&) = delete;
  LogLines& operator=(const LogLines&) = delete;

  void send(google::LogSeverity, const char*, const char*, int, const google::LogMessageTime&, const char* message,
            size_t size) override {
    absl::MutexLock lock(&mutex_);
    lines_.emplace_back(message, size);
  }
  /// Their messages, without time and place.
  std::vector<std::string> lines() {
    absl::MutexLock lock(&mutex_);
    return lines_;
  }

 private:
  absl::Mutex mutex_;
  std::vector<std::string> lines_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace swiftcache::fakes
