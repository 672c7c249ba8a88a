// SPDX-License-Identifier: Apache-2.0
#include "broker/rpc/event_bytes.h"

#include "broker/rpc/proto_convert.h"

namespace swiftcache::broker::rpc {
namespace {

std::vector<grpc::Slice> Serialize(const loop::WatchEvent& event, const std::string& instance_id) {
  std::vector<grpc::Slice> bytes;
  for (const v1::WatchResponse& message : ToProto(event, instance_id)) bytes.emplace_back(message.SerializeAsString());
  return bytes;
}

}  // namespace

std::vector<grpc::Slice> EventBytes::For(const loop::WatchEvent& event, const std::string& instance_id) {
  if (!instance_id.empty()) return Serialize(event, instance_id);
  const std::pair which(event.number, event.what.index());  // a snapshot has the number of the change before it
  if (which != last_) {
    kept_ = Serialize(event, "");
    last_ = which;
  }
  return kept_;
}

// A message's fields may come in any order, and in pieces.
grpc::ByteBuffer WithVersion(const grpc::Slice& message, int64_t version) {
  v1::WatchResponse numbered;
  numbered.set_version(version);
  const grpc::Slice pieces[] = {message, grpc::Slice(numbered.SerializeAsString())};
  return {pieces, 2};
}

}  // namespace swiftcache::broker::rpc
