// SPDX-License-Identifier: Apache-2.0
// The device of tests that do not care which.
//
//   ASSERT_TRUE(Engine::Create(options, Cpu(), std::move(model), clock, metrics).ok());
#pragma once

#include "engine/backend/cpu/cpu_device.h"

namespace swiftcache {

/// One thread. Lives to the end of the process.
inline engine::backend::Device& Cpu() {
  static engine::backend::cpu::CpuDevice device({});
  return device;
}

}  // namespace swiftcache
