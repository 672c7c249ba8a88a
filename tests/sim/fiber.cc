// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/fiber.h"

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
}

void Fiber::Resume() {
  CHECK(!ended_ && !running_);
  if (stack_ == nullptr) {
    stack_.reset(new std::byte[kStackBytes]);
    CHECK_EQ(getcontext(&inside_), 0);
    inside_.uc_stack = {.ss_sp = stack_.get(), .ss_flags = 0, .ss_size = kStackBytes};
    inside_.uc_link = &outside_;
    const auto self = reinterpret_cast<uintptr_t>(this);
    makecontext(&inside_, reinterpret_cast<void (*)()>(&Enter), 2, static_cast<unsigned>(self >> 32),
                static_cast<unsigned>(self));
  }
  running_ = true;
  CHECK_EQ(swapcontext(&outside_, &inside_), 0);
  running_ = false;
}

void Fiber::Yield() {
  if (!finishing_) CHECK_EQ(swapcontext(&inside_, &outside_), 0);
}

void Fiber::Finish() {
  finishing_ = true;
  if (stack_ != nullptr && !ended_) Resume();
  CHECK(stack_ == nullptr || ended_);
}

}  // namespace swiftcache::sim
