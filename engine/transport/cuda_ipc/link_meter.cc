// SPDX-License-Identifier: Apache-2.0
#include "engine/transport/cuda_ipc/link_meter.h"

#include <algorithm>

#include "common/base/status_macros.h"
#include "engine/backend/cuda/device_memory.h"
#include "glog/logging.h"

namespace swiftcache::engine::transport::cuda_ipc {

using backend::cuda::DeviceBytes;
using backend::cuda::DeviceCopy;

bool LinkMeter::IsSlow(const std::string& donor, uint64_t lease, int64_t lease_bytes) {
  const absl::Time now = clock_.Now();
  absl::erase_if(known_, [&](const auto& entry) { return entry.second.until + kRemembered < now; });
  const auto it = known_.find(donor);
  if (it != known_.end() && now <= it->second.until) return it->second.slow;
  if (lease_bytes < kLeastBytes) return false;
  const absl::StatusOr<Times> times = Measure(lease, lease_bytes);
  LOG_IF(WARNING, !times.ok()) << "the link to " << donor << " could not be measured, and what lies there is read in "
                               << "place: " << times.status().message();
  const bool slow = times.ok() && times->link > kSlower * times->own;
  if (times.ok() && (it == known_.end() || it->second.slow != slow)) {
    LOG(INFO) << "--stream=auto: what lies with " << donor << " is " << (slow ? "streamed" : "read in place")
              << ": a copy took " << times->link << ", and one from own memory " << times->own;
  }
  known_[donor] = {.slow = slow, .until = now + kKnown};
  return slow;
}

// Not from the arena: memory of it that comes back from a lease may just be exchanged, and is nowhere meanwhile.
absl::StatusOr<LinkMeter::Times> LinkMeter::Measure(uint64_t lease, int64_t lease_bytes) {
  const int64_t bytes = std::min(lease_bytes, kBytes);
  ASSIGN_OR_RETURN(const DeviceBytes target, DeviceBytes::Allocate(driver_, bytes));
  ASSIGN_OR_RETURN(const DeviceBytes own, DeviceBytes::Allocate(driver_, bytes));
  Times times;
  ASSIGN_OR_RETURN(times.own, TimeOf({.to = target.address(), .from = own.address(), .bytes = bytes}));
  ASSIGN_OR_RETURN(times.link, TimeOf({.to = target.address(), .from = lease, .bytes = bytes}));
  return times;
}

// Nothing of it is under way when it returns, also where it fails.
absl::StatusOr<absl::Duration> LinkMeter::TimeOf(const DeviceCopy& copy) {
  absl::Duration fastest = absl::InfiniteDuration();
  for (int i = 0; i < kTries; ++i) {
    const absl::Time begin = clock_.Now();
    RETURN_IF_ERROR(lane_.Run({.runs = {copy}}, {}));
    fastest = std::min(fastest, clock_.Now() - begin);
  }
  return fastest;
}

}  // namespace swiftcache::engine::transport::cuda_ipc
