// SPDX-License-Identifier: Apache-2.0
// Sets up glog, and defines the tag that every log line about a request carries. Lines go to standard error through a
// queue with a thread of its own (line_writer.h): LOG never waits for the reader. A process whose log is not read, or
// whose disk is full, loses log lines and nothing else.
//
//   LOG(INFO) << RequestTag{request_id, traceparent} << LogField{"tokens", n} << "finished";
//   // text: I1121 17:30:03.000042  4711 relay.cc:7] request_id=r1 model=m tokens=8 finished
//   // json: {"time":"2026-11-21T17:30:03.000042Z","severity":"INFO","file":"relay.cc","line":7,"thread":4711,
//   //        "program":"swiftcache-gateway","request_id":"r1","model":"m","tokens":8,"message":"finished"}
#pragma once

#include <glog/logging.h>

#include <cstdint>
#include <ostream>
#include <string>
#include <string_view>

#include "absl/time/time.h"
#include "common/log/json_line.h"

namespace swiftcache {

/// What is logged: each level includes those before it. What ends the process is always logged.
enum class LogLevel { kError, kWarning, kInfo, kVerbose };

/// "error", "warning", "info", "verbose"
const char* Name(LogLevel level);

/// The names that log lines carry, and their form: set once per process, before any thread exists.
struct LogOptions {
  std::string program;  // argv[0]
  std::string engine;   // "" outside engines
  std::string model;
  LogLevel level = LogLevel::kInfo;
  bool json = false;  // one object a line; false: as glog prints it
};

/// Starts logging to standard error. At exit, lines are flushed for a second at most. A failed CHECK is printed with
/// its stack before it ends the process, which takes seconds at most, even if the log is not read; the stack is text
/// in both forms. REQUIRES: called once, before any thread exists.
void InitLogging(const LogOptions& options);

/// Takes effect at once, and is said in the log whatever the levels are. Thread-safety: safe.
void SetLogLevel(LogLevel level);
LogLevel CurrentLogLevel();

/// Prints `line` unchanged (as an error, where lines are JSON), after everything that was logged, however full the
/// queue is: says why a process ends.
void PrintBehindLog(const std::string& line);

/// Waits until standard error has taken what was logged. False: not within `timeout`.
bool FlushLog(absl::Duration timeout);

/// How many lines of this process were lost since its start, because they were not read or standard error failed.
int64_t LogLinesLost();

/// Sets the engine's name on all later lines, for an engine that learns its name after InitLogging.
void NameEngine(const std::string& engine);

/// Prints `request_id=... trace=... engine=... model=... ` with the parts that are known; control characters in the id
/// are shown escaped, so a client cannot forge log lines. In JSON, where engine and model are on every line of an
/// engine, each part is a member. REQUIRES: stands at the beginning of a message.
struct RequestTag {
  std::string_view request_id;
  std::string_view traceparent;
  std::string_view model = {};  // default: the process's
};
std::ostream& operator<<(std::ostream& out, const RequestTag& tag);

/// Prints `name=value `, escaped as in a RequestTag and in quotes where it has a space; nothing if the value is "". In
/// JSON it is a member. REQUIRES: stands at the beginning of a message, or behind a RequestTag or another field.
struct LogField {
  std::string_view name;
  LogValue value;
};
std::ostream& operator<<(std::ostream& out, const LogField& field);

}  // namespace swiftcache
