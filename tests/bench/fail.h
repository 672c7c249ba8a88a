// SPDX-License-Identifier: Apache-2.0
// How a benchmark ends that was called wrongly, or cannot do what it was called for.
#pragma once

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <string>

namespace swiftcache {

[[noreturn]] inline void Fail(const std::string& message) {
  std::fprintf(stderr, "%s: %s\n", program_invocation_short_name, message.c_str());
  std::exit(2);
}

}  // namespace swiftcache
