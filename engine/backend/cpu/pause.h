// SPDX-License-Identifier: Apache-2.0
// A moment's rest for a thread that spins. CMake chooses the processor's: pause_x86_64.cc, pause_aarch64.cc.
//
//   for (int spin = 0; spin < kSpins && !Done(); ++spin) Pause();
#pragma once

namespace swiftcache::engine::backend::cpu {

/// Some tens of nanoseconds in which the core's other thread has it, and no store is tried ahead. Orders nothing.
void Pause();

}  // namespace swiftcache::engine::backend::cpu
