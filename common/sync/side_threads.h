// SPDX-License-Identifier: Apache-2.0
// Threads for calls that take long, as tokenising a megabyte does, so that a server's own few threads stay free. gRPC
// has as few as two callback threads for all calls of a process: those on which engines' tokens come, too.
//
//   threads.Run([=] { reactor->Finish(Tokens(*request)); });
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>

namespace swiftcache {

/// Thread-safety: safe. Ownership: owns its threads and the work that waits; the destructor runs it all. Errors: none.
class SideThreads {
 public:
  struct Options {
    int threads = 2;
    int max_waiting = 64;  // work that is not done, what is under way included
  };
  /// Whether a message of so many bytes may take some milliseconds.
  static bool IsLong(size_t bytes) { return bytes > (32 << 10); }
  explicit SideThreads(const Options& options);
  ~SideThreads();

  /// On one of the threads; where as much waits as may, here and now.
  void Run(std::function<void()> work);

 private:
  struct Pool;
  const Options options_;
  std::atomic<int> waiting_ = 0;
  const std::unique_ptr<Pool> pool_;
};

}  // namespace swiftcache
