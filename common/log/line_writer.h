// SPDX-License-Identifier: Apache-2.0
// Lines on their way to a descriptor that may take them slowly, or never.
//
//   LineWriter writer({.fd = STDERR_FILENO});
//   writer.Write("a line\n");                       // returns at once
//   writer.Flush(absl::Now() + absl::Seconds(1));   // before the process ends
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <thread>

#include "absl/time/time.h"

namespace swiftcache {

/// A bounded queue and a thread that writes what is in it; only that thread ever waits for the descriptor. Lines that
/// find the queue full, or that the descriptor refuses (its disk is full, its reader has gone), are lost and counted;
/// where lines are missing, a line says how many, as soon as lines are taken again. Order is kept.
/// Thread-safety: safe. Ownership: borrows the descriptor and leaves its flags alone, since other processes may share
/// it. A thread that the descriptor holds up is left behind by the destructor, with what it has; it ends with the
/// process, or when its reader has gone. Errors: none; lost() counts.
class LineWriter {
 public:
  struct Options {
    int fd = 2;
    int64_t max_bytes = int64_t{1} << 20;  // of lines that wait
  };
  explicit LineWriter(const Options& options);
  ~LineWriter();
  LineWriter(const LineWriter&) = delete;
  LineWriter& operator=(const LineWriter&) = delete;

  /// REQUIRES: `line` ends with a newline.
  void Write(std::string line);
  /// However full the queue is: for the few lines that say why a process ends.
  void WriteAnyway(std::string line);
  /// Waits until every line is written or lost. False: not before `deadline`, of the real clock.
  bool Flush(absl::Time deadline);
  /// Lines so far.
  int64_t lost() const;

 private:
  class Queue;
  const std::shared_ptr<Queue> queue_;  // shared with a thread that may have to be left behind
  std::thread thread_;
};

}  // namespace swiftcache
