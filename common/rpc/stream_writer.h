// SPDX-License-Identifier: Apache-2.0
// The server's end of a streaming call: a queue between producers, which must never wait, and a reader that may be
// slow. A derived class fills the queue and stays alive until gRPC's OnDone:
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

/// Writes the messages of `pending_` one by one, as fast as the reader reads. When the queue is empty and `end_` is
/// set, ends the call with that status. `Reactor`: grpc::ServerBidiReactor where the client sends a stream, too.
/// Thread-safety: safe: called by producers and by gRPC's threads.
template <typename Message, typename Reactor = grpc::ServerWriteReactor<Message>>
class StreamWriter : public Reactor {
 public:
  void OnWriteDone(bool ok) final ABSL_LOCKS_EXCLUDED(mutex_) {
    {
      absl::MutexLock lock(&mutex_);
      writing_ = false;
    }
    if (!ok) OnReaderGone();
    Advance();
  }
  void OnCancel() final ABSL_LOCKS_EXCLUDED(mutex_) {
    OnReaderGone();
    Advance();
  }

 protected:
  /// The reader cancelled or has gone. Must call Drop; may be called more than once.
  virtual void OnReaderGone() = 0;
  /// False holds messages back, and the end behind them, until the next Advance.
  virtual bool MayWrite() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return true; }
  /// A message leaves the queue.
  virtual void OnNext(Message& message) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {}

  /// Drops the pending messages; the call ends with `why` unless its end was set before. Takes effect with Advance.
  void Drop(absl::Status why) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    pending_.clear();
    if (!end_.has_value()) end_ = std::move(why);
  }

  /// Writes the next message, or ends the call, unless a write is under way. The call may be over when it returns.
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
