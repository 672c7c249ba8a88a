// SPDX-License-Identifier: Apache-2.0
// The part of a program whose instructions tests/bench/instructions.py counts.
//
//   swiftcache_counted([&] { for (int i = 0; i < 1000; ++i) world.Step(); });
#pragma once

#include <functional>

/// Calls `work`. Its plain name, which is one for the linker too, is what callgrind's --toggle-collect is told.
extern "C" [[gnu::noinline]] inline void swiftcache_counted(const std::function<void()>& work) { work(); }
