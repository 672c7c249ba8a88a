// SPDX-License-Identifier: Apache-2.0
#include "broker/rpc/watch_stream.h"

#include <utility>

#include "broker/rpc/proto_convert.h"
#include "common/rpc/status.h"

namespace swiftcache::broker::rpc {

void WatchStream::Start() {
  self_ = shared_from_this();
  loop_.Watch(self_);
}

bool WatchStream::Offer(const loop::WatchEvent& event) {
  {
    absl::MutexLock lock(&mutex_);
    if (finished_ || close_.has_value()) return true;  // on its way out: Unwatch follows
    if (pending_.size() >= capacity_) return false;
    pending_.push_back(ToProto(event, instance_id_));
  }
  Advance();
  return true;
}

void WatchStream::Close(absl::Status why) {
  {
    absl::MutexLock lock(&mutex_);
    if (close_.has_value()) return;
    close_ = std::move(why);
    pending_.clear();
  }
  Advance();
}

void WatchStream::Advance() {
  std::optional<absl::Status> finish;
  {
    absl::MutexLock lock(&mutex_);
    if (writing_ || finished_) return;
    if (close_.has_value()) {
      finished_ = true;
      finish = close_;
    } else if (!pending_.empty()) {
      writing_ = true;
      current_ = std::move(pending_.front());
      pending_.pop_front();
    } else {
      return;
    }
  }
  // Outside the lock; `writing_` and `finished_` let only one thread come here.
  if (finish.has_value()) {
    Finish(ToGrpc(*finish));
  } else {
    StartWrite(&current_);
  }
}

void WatchStream::OnWriteDone(bool ok) {
  {
    absl::MutexLock lock(&mutex_);
    writing_ = false;
  }
  if (ok) {
    Advance();
  } else {
    Close(absl::CancelledError("the reader is gone"));
    Advance();
  }
}

void WatchStream::OnCancel() { Close(absl::CancelledError("the reader is gone")); }

void WatchStream::OnDone() {
  loop_.Unwatch(self_);
  self_.reset();  // may delete this
}

}  // namespace swiftcache::broker::rpc
