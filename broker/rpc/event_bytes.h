// SPDX-License-Identifier: Apache-2.0
// What Watch sends, as bytes: made once for all who watch everything, who then share them.
//
//   for (const grpc::Slice& message : bytes.For(event, instance_id)) Send(WithVersion(message, ++version));
#pragma once

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/slice.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "broker/loop/watcher.h"
#include "common/base/byte_budget.h"

namespace swiftcache::broker::rpc {

/// Thread-safety: none, but for the budget; the loop's. Ownership: a value; slices live as long as one of their copies.
/// Errors: none.
class EventBytes {
 public:
  explicit EventBytes(int64_t max_unread_snapshot_bytes) : unread_snapshots_(max_unread_snapshot_bytes) {}

  /// Of what readers have not read yet of their snapshots, each counted by itself.
  ByteBudget& unread_snapshots() { return unread_snapshots_; }

  /// The event's WatchResponse, or the parts of a snapshot, without versions: as ToProto. Those for "" are kept until
  /// the next event.
  std::vector<grpc::Slice> For(const loop::WatchEvent& event, const std::string& instance_id);

 private:
  ByteBudget unread_snapshots_;
  std::pair<int64_t, size_t> last_ = {-1, 0};  // number and kind of the event that is kept
  std::vector<grpc::Slice> kept_;
};

/// A WatchResponse of a stream: `message` has all of it but the version.
grpc::ByteBuffer WithVersion(const grpc::Slice& message, int64_t version);

}  // namespace swiftcache::broker::rpc
