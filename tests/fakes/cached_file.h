// SPDX-License-Identifier: Apache-2.0
// Files that scripts fetch for tests: where a variable says, else in the user's cache.
//
//   const std::string path = CachedFile("SWIFTCACHE_TEST_MODEL", "models/SmolLM2-135M-Instruct.Q4_1.gguf");
#pragma once

#include <cstdlib>
#include <string>

namespace swiftcache {

/// $variable, or `otherwise` under the user's cache of SwiftCache.
inline std::string CachedFile(const char* variable, const std::string& otherwise) {
  const auto read = [](const char* name) {
    const char* value = std::getenv(name);
    return std::string(value == nullptr ? "" : value);
  };
  if (const std::string path = read(variable); !path.empty()) return path;
  std::string cache = read("XDG_CACHE_HOME");
  if (cache.empty()) cache = read("HOME") + "/.cache";
  return cache + "/swiftcache/" + otherwise;
}

/// The model that users fetch first.
inline std::string SmolLm2Path() {
  return CachedFile("SWIFTCACHE_TEST_MODEL", "models/SmolLM2-135M-Instruct.Q4_1.gguf");
}

}  // namespace swiftcache
