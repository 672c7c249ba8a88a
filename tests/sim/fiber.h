// SPDX-License-Identifier: Apache-2.0
// Code with a stack of its own that can stop in the midst of a call and go on later, so that virtual time passes within it.
//
//   Fiber fiber([&] { ...; fiber.Yield(); ... });
//   fiber.Resume();   // runs to the Yield
//   fiber.Resume();   // runs to the end
#pragma once

#include <setjmp.h>

#include <cstddef>
#include <functional>
#include <memory>

namespace swiftcache::sim {

/// Thread-safety: none; all of it runs on the thread that resumes it. Ownership: owns its stack. No exception leaves the
/// body, and who yields holds no lock that others take meanwhile.
class Fiber {
 public:
  explicit Fiber(std::function<void()> body) : body_(std::move(body)) {}
  /// A body that has begun is run to its end.
  ~Fiber() { Finish(); }
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  /// From outside: runs it until it yields or ends. REQUIRES: it has not ended.
  void Resume();
  /// From within: back to who resumed it; once it is finishing it does nothing.
  void Yield();
  /// From outside: the body runs to its end, which has to be soon once it is finishing.
  void Finish();
  bool finishing() const { return finishing_; }
  bool running() const { return running_; }

 private:
  [[noreturn]] static void Enter(unsigned high, unsigned low);
  [[noreturn]] void Begin();

  const std::function<void()> body_;
  std::unique_ptr<std::byte[]> stack_;  // null: it has not begun
  jmp_buf resumer_, yielded_;
  bool running_ = false, finishing_ = false, ended_ = false;
};

}  // namespace swiftcache::sim
