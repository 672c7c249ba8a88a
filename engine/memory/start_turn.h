// SPDX-License-Identifier: Apache-2.0
// Processes that start on one device take turns: each sizes its memory by what it finds free there, and would take for
// free what another, a moment later, is about to take.
//
//   ASSIGN_OR_RETURN(const StartTurn turn, StartTurn::Take({.folder = shm_dir, .device_id = id, .holder = "chat"}, unwanted));
//   ...weights, then memory as large as they leave...
//   // the end of `turn`, or of the process, lets the next one in
#pragma once

#include <functional>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "engine/memory/sealed_memory.h"

namespace swiftcache::engine::memory {

/// A lock of the kernel's (flock) on the file start-<device_id> in a folder that all of them see, in containers too.
/// Nobody else is asked, so nobody else can be missing, hang or restart; and the kernel frees it with the process that
/// holds it, however that ends. The file stays there. Thread-safety: a value. Ownership: move-only; the turn ends with
/// it. Errors: INVALID_ARGUMENT (the file cannot be locked; names it), CANCELLED, OpenOwnFile's.
class StartTurn {
 public:
  static constexpr absl::Duration kPoll = absl::Milliseconds(50);
  struct Options {
    std::string folder;     // made where it is missing
    std::string device_id;  // part of a file's name; "": nobody else takes this device's memory
    std::string holder;     // what the log of who waits calls this process
  };
  /// Waits, with one line in the log, as long as another process has the turn: how long that takes is its affair.
  /// `unwanted` is asked every kPoll: true ends the wait.
  static absl::StatusOr<StartTurn> Take(const Options& options, const std::function<bool()>& unwanted);
  /// Keeps nobody waiting.
  StartTurn() = default;

 private:
  explicit StartTurn(UniqueFd file) : file_(std::move(file)) {}
  UniqueFd file_;
};

}  // namespace swiftcache::engine::memory
