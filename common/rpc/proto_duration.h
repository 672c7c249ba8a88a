// SPDX-License-Identifier: Apache-2.0
// absl::Duration <-> google.protobuf.Duration.
//
//   *usage.mutable_queue_time() = DurationToProto(queue_time);
//   const absl::Duration queue_time = DurationFromProto(usage.queue_time());
#pragma once

#include <google/protobuf/duration.pb.h>

#include "absl/time/time.h"

namespace swiftcache {

/// To the nanosecond, towards zero; at most the 10,000 years that the wire allows.
google::protobuf::Duration DurationToProto(absl::Duration duration);

/// Of any seconds and nanos, those too that the wire's rules forbid.
absl::Duration DurationFromProto(const google::protobuf::Duration& proto);

}  // namespace swiftcache
