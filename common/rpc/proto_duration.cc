// SPDX-License-Identifier: Apache-2.0
#include "common/rpc/proto_duration.h"

#include <algorithm>
#include <cstdint>

namespace swiftcache {

google::protobuf::Duration DurationToProto(absl::Duration duration) {
  constexpr absl::Duration kMost = absl::Seconds(315'576'000'000);  // of the wire
  duration = std::clamp(duration, -kMost, kMost);
  google::protobuf::Duration proto;
  proto.set_seconds(absl::IDivDuration(duration, absl::Seconds(1), &duration));
  proto.set_nanos(static_cast<int32_t>(absl::ToInt64Nanoseconds(duration)));
  return proto;
}

absl::Duration DurationFromProto(const google::protobuf::Duration& proto) {
  return absl::Seconds(proto.seconds()) + absl::Nanoseconds(proto.nanos());
}

}  // namespace swiftcache
