// SPDX-License-Identifier: Apache-2.0
// Whether leased memory comes over a link that is much slower than the GPU's own memory: PCIe is, NVLink and the same GPU
// are not.
//
//   LinkMeter links(driver, clock);
//   const bool slow = links.IsSlow("donor.sock", {.lease = address, .own = arena_address, .bytes = bytes});
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

/// Compares copies of kBytes from a lease with such copies from memory that it allocates, the fastest of kTries each, by
/// the host's clock. With 10 to 15 us for a call in both times, and rates from data sheets, a lease takes as long as own
/// memory on the same GPU, half as long again over NVLink, and 4 to 11 times as long over PCIe: kSlower lies between. No
/// GPU has measured it yet (ARCHITECTURE.md, decision 27). What is copied may be written meanwhile: nobody uses it.
///
/// Thread-safety: none; the thread that opens leases has it. Ownership: borrows driver and clock. Errors: none; what
/// cannot be measured counts as fast.
class LinkMeter {
 public:
  static constexpr int64_t kBytes = 4 << 20, kLeastBytes = 1 << 20;  // of fewer nearly all is the call
  static constexpr int kTries = 3;
  static constexpr int kSlower = 3;
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
  struct Times {
    absl::Duration own, link;
  };
  absl::StatusOr<Times> Measure(uint64_t lease, int64_t lease_bytes);
  absl::StatusOr<absl::Duration> TimeOf(const backend::cuda::DeviceCopy& copy);

  backend::cuda::Driver& driver_;
  const Clock& clock_;
  backend::cuda::CopyLane lane_;
  absl::flat_hash_map<std::string, Known> known_;
};

}  // namespace swiftcache::engine::transport::cuda_ipc
