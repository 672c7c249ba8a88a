// SPDX-License-Identifier: Apache-2.0
#include "engine/backend/cpu/pause.h"

namespace swiftcache::engine::backend::cpu {

// "yield" does nothing on most cores; a barrier for instructions takes about as long as x86-64's pause.
void Pause() { asm volatile("isb"); }

}  // namespace swiftcache::engine::backend::cpu
