// SPDX-License-Identifier: Apache-2.0
// glog, set up one way, and the tag that every line about a request carries.
//
//   LOG(INFO) << RequestTag{request_id, traceparent} << "finished, tokens=" << n;
#pragma once

#include <glog/logging.h>

#include <ostream>
#include <string>
#include <string_view>

namespace swiftcache {

/// Who logs: set once per process, before any thread.
struct LogOptions {
  std::string program;  // argv[0]
  std::string engine;   // "" outside engines
  std::string model;
  bool verbose = false;
};

/// Lines go to standard error. REQUIRES: called once, before any thread exists.
void InitLogging(const LogOptions& options);

/// The engine's name, where it is known later than the rest. REQUIRES: no other thread logs yet.
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
