// SPDX-License-Identifier: Apache-2.0
#include "broker/rpc/watch_stream.h"

#include <utility>

#include "broker/rpc/proto_convert.h"

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
  {
    absl::MutexLock lock(&mutex_);
    if (end_.has_value()) return true;  // on its way out: Unwatch follows
    if (pending_.size() >= capacity_) return false;
    for (v1::WatchResponse& message : ToProto(event, instance_id_)) {
      message.set_version(++version_);
      pending_.push_back(std::move(message));
    }
  }
  Advance();
  return true;
}

void WatchStream::Close(absl::Status why) {
  Drop(std::move(why));
  Advance();
}

void WatchStream::OnReaderGone() { Drop(absl::CancelledError("the reader is gone")); }

void WatchStream::OnDone() {
  loop_.Unwatch(self_);
  self_.reset();  // may delete this
}

}  // namespace swiftcache::broker::rpc
