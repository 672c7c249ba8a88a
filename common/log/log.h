// SPDX-License-Identifier: Apache-2.0
// Sets up glog, and defines the tag that every log line about a request carries. Lines go to standard error through a
// queue with a thread of its own (line_writer.h): LOG never waits for the reader. A process whose log is not read, or
// whose disk is full, loses log lines and nothing else.
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

/// The names that log lines carry: set once per process, before any thread exists.
struct LogOptions {
  std::string program;  // argv[0]
  std::string engine;   // "" outside engines
  std::string model;
  bool verbose = false;
};

/// Starts logging to standard error. At exit, lines are flushed for a second at most. A failed CHECK is printed with
/// its stack before it ends the process, which takes seconds at most, even if the log is not read. REQUIRES: called
/// once, before any thread exists.
void InitLogging(const LogOptions& options);

/// Prints `line` unchanged, after everything that was logged, however full the queue is: says why a process ends.
void PrintBehindLog(const std::string& line);

/// Waits until standard error has taken what was logged. False: not within `timeout`.
bool FlushLog(absl::Duration timeout);

/// How many lines of this process were lost since its start, because they were not read or standard error failed.
int64_t LogLinesLost();

/// Sets the engine's name on all later lines, for an engine that learns its name after InitLogging.
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
