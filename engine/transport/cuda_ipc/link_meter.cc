// SPDX-License-Identifier: Apache-2.0
#include "engine/transport/cuda_ipc/link_meter.h"

#include <algorithm>
#include <limits>

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
  const absl::StatusOr<double> rate = RateOf(lease, std::min(lease_bytes, kBytes));
  LOG_IF(WARNING, !rate.ok()) << "the link to " << donor << " could not be measured, and what lies there is read in "
                              << "place: " << rate.status().message();
  const bool slow = rate.ok() && *rate < kFastBytesPerSecond;
  if (rate.ok() && (it == known_.end() || it->second.slow != slow)) {
    LOG(INFO) << "--stream=auto: what lies with " << donor << " is " << (slow ? "streamed" : "read in place")
              << ": copies from there came at " << *rate / 1e9 << " GB/s";
  }
  known_[donor] = {.slow = slow, .until = now + kKnown};
  return slow;
}

// By turns, so that what else the host does now and then meets both. Not into the arena: memory of it that comes back from
// a lease may just be exchanged, and is nowhere meanwhile.
absl::StatusOr<double> LinkMeter::RateOf(uint64_t lease, int64_t bytes) {
  ASSIGN_OR_RETURN(const DeviceBytes target, DeviceBytes::Allocate(driver_, bytes));
  absl::Duration few = absl::InfiniteDuration(), all = few;
  for (int i = 0; i < kTries; ++i) {
    ASSIGN_OR_RETURN(const absl::Duration of_few, TimeOf({.to = target.address(), .from = lease, .bytes = kFewBytes}));
    ASSIGN_OR_RETURN(const absl::Duration of_all, TimeOf({.to = target.address(), .from = lease, .bytes = bytes}));
    few = std::min(few, of_few);
    all = std::min(all, of_all);
  }
  if (all <= few) return std::numeric_limits<double>::infinity();
  return static_cast<double>(bytes - kFewBytes) / absl::ToDoubleSeconds(all - few);
}

// Nothing of it is under way when it returns, also where it fails.
absl::StatusOr<absl::Duration> LinkMeter::TimeOf(const DeviceCopy& copy) {
  const absl::Time begin = clock_.Now();
  RETURN_IF_ERROR(lane_.Run({.runs = {copy}}, {}));
  return clock_.Now() - begin;
}

}  // namespace swiftcache::engine::transport::cuda_ipc
