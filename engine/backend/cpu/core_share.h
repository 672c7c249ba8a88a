// SPDX-License-Identifier: Apache-2.0
// The cores of a machine, shared by its engines: those that compute divide them among each other, one that computes alone
// has them all. Without it each of two engines would start a thread on every core, and each loop over the rows of a step
// would wait for a thread that the other's holds up.
//
//   ASSIGN_OR_RETURN(auto share, CoreShare::Join(folder, FindAllowedCores(), clock));
//   share->Enter();                                       // a step begins
//   for (const Loop& loop : loops) loop.Run(share->Threads());
//   share->Leave();
//
// The engines of one folder (in memory) and one set of cores meet in a file there, which all of them map: a bit for each that
// computes, and a counter for each that it moves on with every loop. Whose counter stands still for kStale while its bit
// is set (it was killed, or stopped) is left out. Nothing but speed depends on what stands there.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "engine/backend/cpu/allowed_cores.h"
#include "engine/memory/sealed_memory.h"

namespace swiftcache::engine::backend::cpu {

/// Thread-safety: one thread enters, asks and leaves. Ownership: borrows the clock; its place is free again when it, or
/// the process, ends, and who ends last removes the file. Cost: a few nanoseconds a question, no system call.
class CoreShare {
 public:
  static constexpr int kMaxEngines = 64;
  static constexpr absl::Duration kStale = absl::Seconds(5);

  /// Makes the folder where it is missing; `remove_folder`: who ends last removes it, if nothing else is there. Errors: RESOURCE_EXHAUSTED (kMaxEngines are there), INVALID_ARGUMENT (names
  /// the folder: it is none, or cannot be written), FAILED_PRECONDITION (the folder is not memory, but on a disk, whose
  /// file system now and then holds up who writes to a mapped page).
  static absl::StatusOr<std::unique_ptr<CoreShare>> Join(const std::string& folder, const AllowedCores& cores,
                                                         const Clock& clock, bool remove_folder = false);
  ~CoreShare();

  /// A second Enter changes nothing.
  void Enter();
  /// How many threads to compute with now, 1 to cores.usable. The parts of all add up to the cores of the set where no
  /// quota is smaller, those of the engines of one quota to at most the quota, and to one for each engine where these are
  /// more. REQUIRES: entered.
  int Threads();
  void Leave();

 private:
  struct Page;
  struct Seat {
    memory::UniqueFd file;  // its lock is what holds the place
    std::string path, folder_to_remove;
    Page* page = nullptr;
    int place = 0;
  };
  CoreShare(Seat seat, const AllowedCores& cores, const Clock& clock);
  /// The others that compute.
  uint64_t Others() const;
  uint64_t OfMyQuota(uint64_t others) const;
  int PartOf(int cores, uint64_t others) const;

  const Seat seat_;
  Page* const page_;
  const int place_;
  const AllowedCores cores_;
  const Clock& clock_;
  uint64_t stale_ = 0, counted_ = 0;
  int threads_ = 0;                               // for counted_; 0: none yet
  std::array<uint64_t, kMaxEngines> beats_ = {};  // of the others, as last seen by Enter
  std::array<absl::Time, kMaxEngines> moved_at_ = {};
};

}  // namespace swiftcache::engine::backend::cpu
