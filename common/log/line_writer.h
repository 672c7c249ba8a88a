// SPDX-License-Identifier: Apache-2.0
// Writes lines to a file descriptor without ever waiting for it, even if its reader is slow or stopped.
//
//   LineWriter writer({.fd = STDERR_FILENO});
//   writer.Write("a line\n");                       // returns at once
//   writer.Flush(absl::Now() + absl::Seconds(1));   // before the process ends
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "absl/time/time.h"

namespace swiftcache {

/// A line of the log as glog prints a warning, with its newline.
std::string FormatWarning(const std::string& text);

/// A bounded queue and a thread that writes what is in it; only that thread ever waits for the descriptor. Lines are
/// lost and counted when the queue is full or a write fails (disk full, reader gone). As soon as writing works again, a
/// line says how many are missing at that place. Order is kept.
/// Thread-safety: safe. Ownership: borrows the descriptor and does not change its flags, since other processes may
/// share it. The destructor does not wait for a thread that is blocked on the descriptor: that thread ends with the
/// process, or when the reader has gone. Errors: none; lost() counts.
class LineWriter {
 public:
  struct Options {
    int fd = 2;
    int64_t max_bytes = int64_t{1} << 20;                                                // of lines that wait
    std::function<std::string(const std::string& text)> format_warning = FormatWarning;  // of what is missing
  };
  explicit LineWriter(const Options& options);
  ~LineWriter();
  LineWriter(const LineWriter&) = delete;
  LineWriter& operator=(const LineWriter&) = delete;

  /// REQUIRES: `line` ends with a newline.
  void Write(std::string line);
  /// As Write, however full the queue is: for the few lines that say why a process ends.
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
