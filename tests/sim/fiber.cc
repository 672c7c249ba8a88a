// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/fiber.h"

#include <ucontext.h>

#include <cstdint>

#include "glog/logging.h"

namespace swiftcache::sim {
namespace {

constexpr size_t kStackBytes = 256 << 10;

}  // namespace

// makecontext passes ints alone.
void Fiber::Enter(unsigned high, unsigned low) {
  auto* const fiber = reinterpret_cast<Fiber*>(static_cast<uintptr_t>(high) << 32 | low);
  fiber->body_();
  fiber->ended_ = true;
  _longjmp(fiber->resumer_, 1);
}

void Fiber::Begin() {
  stack_.reset(new std::byte[kStackBytes]);
  ucontext_t inside;
  CHECK_EQ(getcontext(&inside), 0);
  inside.uc_stack = {.ss_sp = stack_.get(), .ss_flags = 0, .ss_size = kStackBytes};
  inside.uc_link = nullptr;
  const auto self = reinterpret_cast<uintptr_t>(this);
  makecontext(&inside, reinterpret_cast<void (*)()>(&Enter), 2, static_cast<unsigned>(self >> 32),
              static_cast<unsigned>(self));
  (void)setcontext(&inside);
  LOG(FATAL) << "setcontext returned";
}

// Not by swapcontext, which asks the kernel for the mask of signals each time.
void Fiber::Resume() {
  CHECK(!ended_ && !running_);
  running_ = true;
  if (_setjmp(resumer_) == 0) {
    if (stack_ == nullptr) Begin();
    _longjmp(yielded_, 1);
  }
  running_ = false;
}

void Fiber::Yield() {
  if (!finishing_ && _setjmp(yielded_) == 0) _longjmp(resumer_, 1);
}

void Fiber::Finish() {
  finishing_ = true;
  if (stack_ != nullptr && !ended_) Resume();
  CHECK(stack_ == nullptr || ended_);
}

}  // namespace swiftcache::sim
