// SPDX-License-Identifier: Apache-2.0
#include "engine/backend/cpu/pause.h"

namespace swiftcache::engine::backend::cpu {

void Pause() { asm volatile("pause"); }

}  // namespace swiftcache::engine::backend::cpu
