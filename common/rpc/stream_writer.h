// SPDX-License-Identifier: Apache-2.0
// The server's end of a streaming call: a queue between those who produce messages, and must never wait, and a reader
// who may be slow. Who derives from it fills the queue and lives until gRPC's OnDone:
//
//   {
//     absl::MutexLock lock(&mutex_);
//     if (end_.has_value()) return;
//     pending_.push_back(std::move(message));
//   }
//   Advance();
#pragma once

#include <grpcpp/support/server_callback.h>

#include <deque>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "common/rpc/status.h"

namespace swiftcache {

/// Messages go out one by one, as fast as the reader reads. Behind the last one the call ends, once its end is known.
/// Thread-safety: safe: producers and gRPC's threads meet here.
template <typename Message>
class StreamWriter : public grpc::ServerWriteReactor<Message> {
 public:
  void OnWriteDone(bool ok) final ABSL_LOCKS_EXCLUDED(mutex_) {
    {
      absl::MutexLock lock(&mutex_);
      writing_ = false;
    }
    if (!ok) OnGone();
    Advance();
  }
  void OnCancel() final ABSL_LOCKS_EXCLUDED(mutex_) {
    OnGone();
    Advance();
  }

 protected:
  /// The reader cancelled or has gone: Drop, at the least. Perhaps more than once.
  virtual void OnGone() = 0;
  /// False holds messages back, and the end behind them, until the next Advance.
  virtual bool MayWrite() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return true; }
  /// A message leaves the queue.
  virtual void OnNext(Message& message) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {}

  /// What is pending is not sent any more, and the call ends with `why` unless its end is known. Advance follows.
  void Drop(absl::Status why) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    pending_.clear();
    if (!end_.has_value()) end_ = std::move(why);
  }

  /// Writes the next message or ends the call, where no write is under way. The call may be over when it returns.
  void Advance() ABSL_LOCKS_EXCLUDED(mutex_) {
    std::optional<absl::Status> finish;
    {
      absl::MutexLock lock(&mutex_);
      if (writing_ || finished_) return;
      if (!pending_.empty()) {
        if (!MayWrite()) return;
        writing_ = true;
        current_ = std::move(pending_.front());
        pending_.pop_front();
        OnNext(current_);
      } else if (end_.has_value()) {
        finished_ = true;
        finish = end_;
      } else {
        return;
      }
    }
    // Outside the lock; `writing_` and `finished_` let only one thread come here.
    if (finish.has_value()) {
      this->Finish(ToGrpc(*finish));
    } else {
      this->StartWrite(&current_);
    }
  }

  absl::Mutex mutex_;
  std::deque<Message> pending_ ABSL_GUARDED_BY(mutex_);
  std::optional<absl::Status> end_ ABSL_GUARDED_BY(mutex_);

 private:
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  Message current_;  // what the write under way reads
};

}  // namespace swiftcache
