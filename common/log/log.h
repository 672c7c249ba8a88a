// SPDX-License-Identifier: Apache-2.0
// glog, set up one way, and the tag that every line about a request carries. Lines go to standard error through a
// queue and a thread of their own (line_writer.h): LOG never waits for who reads them, and a process whose log nobody
// reads, or whose disk is full, loses lines and nothing else.
//
//   LOG(INFO) << RequestTag{request_id, traceparent} << "finished, tokens=" << n;
#pragma once

#include <glog/logging.h>

#include <cstdint>
#include <ostream>
#include <string>
#include <string_view>

#include "absl/time/time.h"

namespace swiftcache {

/// Who logs: set once per process, before any thread.
struct LogOptions {
  std::string program;  // argv[0]
  std::string engine;   // "" outside engines
  std::string model;
  bool verbose = false;
};

/// From here on lines go to standard error, and are flushed at exit for a second at most. A failed CHECK is printed with
/// its stack before it ends the process, and ends it within seconds if nobody reads. REQUIRES: called once, before any
/// thread exists.
void InitLogging(const LogOptions& options);

/// `line` as it is, behind everything that was logged, however full the queue: why a process ends.
void PrintBehindLog(const std::string& line);

/// Waits until standard error has taken what was logged. False: `patience` ended first.
bool FlushLog(absl::Duration patience);

/// Since the start, of this process: because nobody read them, or standard error failed.
int64_t LogLinesLost();

/// The engine's name, where it is known later than the rest: of lines from here on, whoever writes them.
void NameEngine(const std::string& engine);

/// Prints `request_id=... trace=... engine=... model=...: ` with the parts that are known; control characters in the id
/// are shown escaped, so a client cannot forge log lines.
struct RequestTag {
  std::string_view request_id;
  std::string_view traceparent;
  std::string_view model = {};  // default: the process's
};
std::ostream& operator<<(std::ostream& out, const RequestTag& tag);

}  // namespace swiftcache
