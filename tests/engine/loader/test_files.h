// SPDX-License-Identifier: Apache-2.0
// Where the loader's test files lie.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

namespace swiftcache::engine::loader {

inline std::string DataPath(const std::string& name) { return SWIFTCACHE_SOURCE_DIR "/tests/data/" + name; }

/// A path under the shared reference data (SWIFTCACHE_SHARED, default ../shared beside the sources), if it is there.
inline std::optional<std::string> SharedPath(const std::string& name) {
  const char* set = std::getenv("SWIFTCACHE_SHARED");
  const std::string path = std::string(set != nullptr ? set : SWIFTCACHE_SOURCE_DIR "/../shared") + "/" + name;
  if (!std::filesystem::exists(path)) return std::nullopt;
  return path;
}

inline std::string ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

inline std::vector<nlohmann::json> ReadJsonLines(const std::string& path) {
  std::vector<nlohmann::json> rows;
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) rows.push_back(nlohmann::json::parse(line));
  return rows;
}

}  // namespace swiftcache::engine::loader
