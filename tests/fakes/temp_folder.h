// SPDX-License-Identifier: Apache-2.0
// A folder that is gone after the test.
//
//   const TempFolder folder;
//   const std::string path = folder.Write("model.gguf", "GGUF");
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace swiftcache {

/// Ownership: of the folder with all that is in it. `parent`: /tmp where sockets lie in it, whose paths are short.
class TempFolder {
 public:
  explicit TempFolder(const std::string& parent = testing::TempDir()) {
    std::string path = std::filesystem::path(parent) / "swiftcache-test-XXXXXX";
    path_ = mkdtemp(path.data());
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  ~TempFolder() { std::filesystem::remove_all(path_); }

  const std::string& path() const { return path_; }
  std::string Write(const std::string& name, const std::string& bytes) const {
    std::ofstream(path_ + "/" + name, std::ios::binary) << bytes;
    return path_ + "/" + name;
  }
  void CopyFrom(const std::string& folder) const {
    std::filesystem::copy(folder, path_, std::filesystem::copy_options::recursive);
  }

 private:
  std::string path_;
};

}  // namespace swiftcache
