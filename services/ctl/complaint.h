// SPDX-License-Identifier: Apache-2.0
// The error message for a command line that swiftcachectl does not understand.
//
//   catch (const CLI::ParseError& error) { std::cerr << Complaint(app, error) << std::endl; }
#pragma once

#include <functional>
#include <string>

#include "absl/status/status.h"

namespace CLI {
class App;
class ParseError;
}  // namespace CLI

namespace swiftcache::services::ctl {

/// One line without its end: what was found, what was probably meant, where the flags are listed. REQUIRES: `app` is
/// the outermost command, and parsing it has thrown `error`.
std::string Complaint(const CLI::App& app, const CLI::ParseError& error);

/// For CLI::Option::check: "found '3', wanted a number in [0, 2]" where a number lies outside, else "". `low` itself lies
/// outside where it is `open`. What is no number is the parser's to refuse.
std::function<std::string(const std::string&)> NumberIn(double low, double high, bool open = false);

/// What gRPC says of a server of HTTP/1: often the right process, by its other port.
bool SpeaksHttp1(const absl::Status& status);

/// "--broker=127.0.0.1:8000: that is an HTTP port; wanted the gRPC address of a broker, as in 127.0.0.1:50050". What
/// answered there with `status` is not the `server` that is wanted.
std::string NotThatServer(const std::string& server, const std::string& address, const std::string& usual,
                          const absl::Status& status);

}  // namespace swiftcache::services::ctl
