// SPDX-License-Identifier: Apache-2.0
// A process that has hardly a file descriptor left, while the object lives.
//
//   {
//     const FewDescriptors none(0);
//     EXPECT_EQ(socket(AF_INET, SOCK_STREAM, 0), -1);
//   }
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <vector>

namespace swiftcache::fakes {

/// Lowers the soft limit to kMost and takes all but `left`. REQUIRES: the process has fewer than kMost open.
class FewDescriptors {
 public:
  static constexpr int kMost = 256;

  explicit FewDescriptors(int left) {
    EXPECT_EQ(getrlimit(RLIMIT_NOFILE, &before_), 0);
    const rlimit few{.rlim_cur = kMost, .rlim_max = before_.rlim_max};
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
    for (int fd = open("/dev/null", O_RDONLY | O_CLOEXEC); fd >= 0; fd = open("/dev/null", O_RDONLY | O_CLOEXEC)) {
      taken_.push_back(fd);
    }
    for (; left > 0 && !taken_.empty(); --left) Release();
  }
  FewDescriptors(const FewDescriptors&) = delete;
  FewDescriptors& operator=(const FewDescriptors&) = delete;
  ~FewDescriptors() {
    while (!taken_.empty()) Release();
    setrlimit(RLIMIT_NOFILE, &before_);
  }

 private:
  void Release() {
    close(taken_.back());
    taken_.pop_back();
  }

  rlimit before_{};
  std::vector<int> taken_;
};

}  // namespace swiftcache::fakes
