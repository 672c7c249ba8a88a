// SPDX-License-Identifier: Apache-2.0
// Whether leased memory comes over a link that is much slower than the GPU's own memory: PCIe is, NVLink and the same GPU
// are not.
//
//   LinkMeter links(driver, clock);
//   const bool slow = links.IsSlow("donor.sock", lease_address, lease_bytes);
//
// A kernel that reads in place waits for what it reads. Over a slow link that costs more than slots in own memory do, which
// the copy engine fills while the layer before is computed; over a fast one slots cost memory and save little.
#pragma once

#include <cstdint>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "engine/backend/cuda/copy_lane.h"
#include "engine/backend/cuda/driver.h"

namespace swiftcache::engine::transport::cuda_ipc {

/// The link alone: copies of kBytes and of kFewBytes from a lease, the fastest of kTries each, by the host's clock, and the
/// rate at which the longer one moved what it has more. What a call costs, and what it waits for, is in both, so that an
/// engine that computes meanwhile, as one does that is short of memory, does not change the answer: a measure of its own
/// memory beside it would be slower then, and PCIe look fast. No GPU has measured it yet (ARCHITECTURE.md, decision 27).
/// What is copied may be written meanwhile: nobody uses it.
///
/// Thread-safety: none; the thread that opens leases has it. Ownership: borrows driver and clock. Errors: none; what
/// cannot be measured counts as fast.
class LinkMeter {
 public:
  static constexpr int64_t kBytes = 4 << 20, kLeastBytes = 1 << 20, kFewBytes = 64 << 10;
  static constexpr int kTries = 5;
  /// By data sheets PCIe 5 has 64 GB/s at most, NVLink between two GPUs of a data centre 300 and more.
  static constexpr double kFastBytesPerSecond = 100e9;
  static constexpr absl::Duration kKnown = absl::Minutes(1);     // so long, of a donor
  static constexpr absl::Duration kRemembered = absl::Hours(1);  // so that the log says it once

  LinkMeter(backend::cuda::Driver& driver, const Clock& clock) : driver_(driver), clock_(clock), lane_(driver) {}

  /// `lease`: where it lies, of the donor's memory. REQUIRES: it is mapped until this returns.
  bool IsSlow(const std::string& donor, uint64_t lease, int64_t lease_bytes);

 private:
  struct Known {
    bool slow = false;
    absl::Time until;
  };
  absl::StatusOr<double> RateOf(uint64_t lease, int64_t bytes);  // bytes a second
  absl::StatusOr<absl::Duration> TimeOf(const backend::cuda::DeviceCopy& copy);

  backend::cuda::Driver& driver_;
  const Clock& clock_;
  backend::cuda::CopyLane lane_;
  absl::flat_hash_map<std::string, Known> known_;
};

}  // namespace swiftcache::engine::transport::cuda_ipc
