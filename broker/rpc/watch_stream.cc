// SPDX-License-Identifier: Apache-2.0
#include "broker/rpc/watch_stream.h"

#include <utility>
#include <variant>
#include <vector>

namespace swiftcache::broker::rpc {

void WatchStream::Start() {
  self_ = shared_from_this();
  loop_.Watch(self_);
}

void WatchStream::Refuse(absl::Status why) {
  self_ = shared_from_this();
  Close(std::move(why));
}

bool WatchStream::Offer(const loop::WatchEvent& event) {
  const std::vector<grpc::Slice> messages = bytes_->For(event, instance_id_);
  {
    absl::MutexLock lock(&mutex_);
    if (end_.has_value()) return true;  // on its way out: Unwatch follows
    if (pending_.size() >= capacity_) return false;
    if (std::holds_alternative<loop::WatchEvent::Snapshot>(event.what)) {
      int64_t bytes = 0;
      for (const grpc::Slice& part : messages) bytes += static_cast<int64_t>(part.size());
      if (!unread_.Grow(bytes)) return false;
      unread_parts_ = messages.size();
    }
    for (const grpc::Slice& message : messages) pending_.push_back(WithVersion(message, ++version_));
  }
  Advance();
  return true;
}

void WatchStream::Close(absl::Status why) {
  End(std::move(why));
  Advance();
}

// What it has not read makes room for others' snapshots now, although the stream may be a while in ending.
void WatchStream::End(absl::Status why) {
  Drop(std::move(why));
  absl::MutexLock lock(&mutex_);
  unread_parts_ = 0;
  unread_.Reset();
}

void WatchStream::OnNext(grpc::ByteBuffer&) {
  if (unread_parts_ > 0 && --unread_parts_ == 0) unread_.Reset();
}

void WatchStream::OnReaderGone() { End(absl::CancelledError("the reader is gone")); }

void WatchStream::OnDone() {
  loop_.Unwatch(self_);
  self_.reset();  // may delete this
}

}  // namespace swiftcache::broker::rpc
