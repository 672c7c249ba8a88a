// SPDX-License-Identifier: Apache-2.0
// A second process, which is killed. Made before the test has threads.
//
//   OtherProcess other([&] { ... std::filesystem::create_directory(path); });
//   ASSERT_TRUE(WaitForFile(path));
//   other.Kill();
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <string>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "tests/fakes/recording_transport_events.h"

namespace swiftcache::engine::transport {

/// It ends by SIGKILL.
class OtherProcess {
 public:
  template <typename Body>
  explicit OtherProcess(Body body) : pid_(fork()) {
    if (pid_ == 0) {
      body();
      for (;;) pause();
    }
  }
  void Kill() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }

 private:
  pid_t pid_;
};

inline bool WaitForFile(const std::string& path) {
  const absl::Time deadline = absl::Now() + RecordingTransportEvents::kPatience;
  while (!std::filesystem::exists(path) && absl::Now() < deadline) absl::SleepFor(absl::Milliseconds(2));
  return std::filesystem::exists(path);
}

}  // namespace swiftcache::engine::transport
