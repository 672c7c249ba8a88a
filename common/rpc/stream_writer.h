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

#include <grpcpp/alarm.h>
#include <grpcpp/server_context.h>
#include <grpcpp/support/server_callback.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/base/wall_time.h"
#include "common/rpc/status.h"

namespace swiftcache {

/// Writes the messages of `pending_` one by one, as fast as the reader reads. When the queue is empty and `end_` is
/// set, ends the call with that status. `Reactor`: grpc::ServerBidiReactor where the client sends a stream, too.
/// Thread-safety: safe: called by producers and by gRPC's threads. Ownership: borrows the context of CutIfStalled.
/// Errors: a call that is cut ends with CANCELLED at its client.
template <typename Message, typename Reactor = grpc::ServerWriteReactor<Message>>
class StreamWriter : public Reactor {
 public:
  /// Cancels the call where one write is under way for `timeout`, or for a quarter of it more. `self` is this stream,
  /// `context` the call's. REQUIRES: called before the first Advance; the call ends by Advance alone.
  void CutIfStalled(grpc::CallbackServerContext& context, absl::Duration timeout, std::weak_ptr<StreamWriter> self) {
    context_ = &context;
    tick_ = timeout / kTicks;
    weak_self_ = std::move(self);
  }

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
  /// The reader has taken nothing for as long as CutIfStalled says: the call is cancelled next. Must call Drop.
  virtual void OnStalled() { OnReaderGone(); }
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
      if (writing_ || finished_ || cutting_) return;
      if (!pending_.empty()) {
        if (!MayWrite()) return;
        writing_ = true;
        ++writes_;
        Watch();
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
  // A process that was stopped for long finds one tick passed, not all of them.
  static constexpr int kTicks = 4;

  // One alarm watches all writes: it looks now and then, and rests where it finds none.
  void Watch() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (context_ == nullptr || alarm_ != nullptr) return;
    watched_write_ = writes_;
    ticks_ = 0;
    SetAlarm();
  }
  void SetAlarm() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    alarm_ = std::make_unique<grpc::Alarm>();
    // Called, with false, when the alarm is destroyed as well.
    alarm_->Set(absl::ToChronoTime(WallTimeNow() + tick_), [weak = weak_self_](bool passed) {
      const std::shared_ptr<StreamWriter> stream = passed ? weak.lock() : nullptr;
      if (stream != nullptr) stream->OnTick();
    });
  }
  void OnTick() ABSL_LOCKS_EXCLUDED(mutex_) {
    {
      absl::MutexLock lock(&mutex_);
      if (!writing_) return alarm_.reset();
      ticks_ = watched_write_ == writes_ ? ticks_ + 1 : 0;
      watched_write_ = writes_;
      if (ticks_ < kTicks) return SetAlarm();
      cutting_ = true;  // without Finish the call is not over, and its context is there
    }
    OnStalled();
    context_->TryCancel();  // the write ends now
    {
      absl::MutexLock lock(&mutex_);
      cutting_ = false;
    }
    Advance();
  }

  grpc::CallbackServerContext* context_ = nullptr;  // set before the first Advance, then constant,
  absl::Duration tick_;                             // likewise,
  std::weak_ptr<StreamWriter> weak_self_;           // likewise
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  bool cutting_ ABSL_GUARDED_BY(mutex_) = false;
  std::unique_ptr<grpc::Alarm> alarm_ ABSL_GUARDED_BY(mutex_);  // set while writes are watched
  int64_t writes_ ABSL_GUARDED_BY(mutex_) = 0;                  // begun so far
  int64_t watched_write_ ABSL_GUARDED_BY(mutex_) = 0;           // the last one that was begun at the last tick,
  int ticks_ ABSL_GUARDED_BY(mutex_) = 0;                       // and for how many ticks it has been
  Message current_;                                             // what the write under way reads
};

}  // namespace swiftcache
