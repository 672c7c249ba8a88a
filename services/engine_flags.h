// SPDX-License-Identifier: Apache-2.0
// The flags of swiftcache-engine, checked as far as flags alone can be.
//
//   EngineFlags flags;
//   if (std::optional<int> exit_code = flags.Parse(argc, argv)) return *exit_code;
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/time/time.h"
#include "engine/exec/engine.h"
#include "engine/models/create_model.h"

namespace swiftcache::services {

/// Thread-safety: a value.
struct EngineFlags {
  std::string model, model_name, name, backend = "auto", dtype = "auto", kv_cache_dtype = "bf16";
  std::string broker = "127.0.0.1:50050", listen = "127.0.0.1:50061", http_listen = "127.0.0.1:9181", advertise;
  int64_t threads = 0;  // 0: one per core
  absl::Duration drain_timeout = absl::Seconds(30);
  engine::exec::EngineOptions engine;

  /// As Flags::Parse. Afterwards model_name is set, and threads is at least 1.
  std::optional<int> Parse(int argc, char** argv);
  engine::models::ComputeDtype compute_dtype() const;
};

}  // namespace swiftcache::services
