// SPDX-License-Identifier: Apache-2.0
// One Watch stream: a bounded queue between the loop and a reader that may be slow.
//
//   auto stream = std::make_shared<WatchStream>(name, instance_id, 1024, bytes, loop);
//   stream->Start();       // it lives until the call is over
//   return stream.get();
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "broker/loop/broker_loop.h"
#include "broker/rpc/event_bytes.h"
#include "common/rpc/stream_writer.h"

namespace swiftcache::broker::rpc {

/// Thread-safety: safe: loop and gRPC threads meet here. Ownership: shared by the loop (as its watcher) and by the call
/// under way (`self_`, until OnDone). Errors: Offer refuses when the queue is full, and a snapshot for
/// which unread ones leave no room; Close's status ends the call after the write under way.
class WatchStream final : public StreamWriter<grpc::ByteBuffer>,
                          public loop::Watcher,
                          public std::enable_shared_from_this<WatchStream> {
 public:
  /// `instance_id`: of the engine that watches and has shown its token: it gets the capabilities of its leases. Or "".
  WatchStream(std::string name, std::string instance_id, size_t capacity, std::shared_ptr<EventBytes> bytes,
              loop::BrokerLoop& loop)
      : name_(std::move(name)),
        instance_id_(std::move(instance_id)),
        capacity_(capacity),
        bytes_(std::move(bytes)),
        loop_(loop),
        unread_(bytes_->unread_snapshots()) {}

  /// Enters the loop. Called once, or Refuse is.
  void Start();
  void Refuse(absl::Status why);

  // Watcher
  const std::string& name() const override { return name_; }
  const std::string& instance_id() const override { return instance_id_; }
  bool Offer(const loop::WatchEvent& event) override ABSL_LOCKS_EXCLUDED(mutex_);
  void Close(absl::Status why) override ABSL_LOCKS_EXCLUDED(mutex_);

  void OnDone() override;

 private:
  void End(absl::Status why) ABSL_LOCKS_EXCLUDED(mutex_);
  void OnReaderGone() override;
  void OnNext(grpc::ByteBuffer& message) override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::string name_, instance_id_;
  const size_t capacity_;
  const std::shared_ptr<EventBytes> bytes_;  // of all streams; the loop may hold this one when the door is gone
  loop::BrokerLoop& loop_;
  int64_t version_ ABSL_GUARDED_BY(mutex_) = 0;      // of the last message
  ByteShare unread_ ABSL_GUARDED_BY(mutex_);         // the snapshot's bytes, until its last part is being written
  size_t unread_parts_ ABSL_GUARDED_BY(mutex_) = 0;  // of it
  std::shared_ptr<WatchStream> self_;
};

}  // namespace swiftcache::broker::rpc
